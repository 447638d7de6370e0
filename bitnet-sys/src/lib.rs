//! Raw bindings to the pinned bitnet.cpp.
