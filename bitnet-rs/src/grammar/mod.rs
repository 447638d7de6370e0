//! GBNF front: refuses what the engine would swallow or die of.
