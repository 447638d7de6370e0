//! Agent boundary: model output is never a command.
