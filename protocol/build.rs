//! Compiles the published protocol with a compiler that is itself a crate: no system package is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/flexlog/v1/client.proto", "proto/flexlog/v1/node.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    // Far larger than every other answer, and rare.
    let status = ".flexlog.v1.Answer.kind.status";
    prost_build::Config::new().bytes(["."]).boxed(status).compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
