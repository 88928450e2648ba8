//! Compiles the protocol of the feature `served` with a compiler that is itself a crate: no system package is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "served")]
    {
        let files = ["proto/flexlog/metadata/v1/metadata.proto"];
        let descriptors = protox::compile(files, ["proto"])?;
        prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    }
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
