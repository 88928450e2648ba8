//! Finds libpmem2, where the device for it is asked for. Without that feature nothing is needed and nothing is done.
#![allow(clippy::print_stdout, reason = "it is how cargo is told")]

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "pmem2")]
    pkg_config::Config::new().atleast_version("1.9").probe("libpmem2").map_err(|error| {
        format!("the feature `pmem2` needs libpmem2: install libpmem2-dev and pkg-config, or leave it out ({error})")
    })?;
    Ok(())
}
