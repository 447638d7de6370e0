//! Independent reference: I2_S arithmetic and a forward pass, no engine code.
