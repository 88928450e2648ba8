//! What a FlexLog cluster is made of: its metadata, and the stores that keep it.
