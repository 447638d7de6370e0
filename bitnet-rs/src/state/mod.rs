//! Sequence state: the validated form of `llama_state_seq_get_data` blobs.
