//! Measures FlexLog beside the limits of the machine it runs on.

fn main() {}
