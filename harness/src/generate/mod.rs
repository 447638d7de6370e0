//! Generation: chat templates, streaming, the generator that an agent embeds.
