//! The baseline for a round trip: a process that sends back what it gets, blocking or on tokio.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use clap::{Args, ValueEnum};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Outcome;
use crate::measure::Latencies;
use crate::servers::{Process, ready};

/// Arguments of the echo server.
#[derive(Args)]
pub(crate) struct EchoArgs {
    kind: Kind,
    size: usize,
}

/// How both ends wait for bytes.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// In a system call.
    Blocking,
    /// On a current-thread runtime.
    Tokio,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Tokio => "tokio",
        }
    }
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Serves one client until it leaves.
pub(crate) fn serve(args: &EchoArgs) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    ready(&listener.local_addr()?.to_string());
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut bytes = vec![0; args.size];
    match args.kind {
        Kind::Blocking => {
            while stream.read_exact(&mut bytes).is_ok() {
                stream.write_all(&bytes)?;
            }
            Ok(())
        }
        Kind::Tokio => runtime()?.block_on(async {
            stream.set_nonblocking(true)?;
            let mut stream = tokio::net::TcpStream::from_std(stream)?;
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await?;
            }
            Ok(())
        }),
    }
}

/// A client of an echo server in another process.
pub(crate) struct Echo {
    pub(crate) server: Process,
    bytes: Vec<u8>,
    blocking: Option<TcpStream>,
    tokio: Option<(tokio::runtime::Runtime, tokio::net::TcpStream)>,
}

impl Echo {
    pub(crate) fn start(kind: Kind, size: usize) -> Outcome<Self> {
        let server = Process::start(&["echo", kind.name(), &size.to_string()])?;
        let stream = TcpStream::connect(&server.address)?;
        stream.set_nodelay(true)?;
        let bytes = vec![7; size];
        let (mut blocking, mut tokio) = (None, None);
        match kind {
            Kind::Blocking => blocking = Some(stream),
            Kind::Tokio => {
                stream.set_nonblocking(true)?;
                let runtime = runtime()?;
                let stream = runtime.block_on(async { tokio::net::TcpStream::from_std(stream) })?;
                tokio = Some((runtime, stream));
            }
        }
        Ok(Self { server, bytes, blocking, tokio })
    }

    /// Adds `rounds` round trips to `to`.
    pub(crate) fn measure(&mut self, rounds: usize, to: &mut Latencies) -> Outcome<()> {
        let bytes = &mut self.bytes;
        if let Some(stream) = &mut self.blocking {
            for _ in 0..rounds {
                let start = Instant::now();
                stream.write_all(bytes)?;
                stream.read_exact(bytes)?;
                to.add(start.elapsed());
            }
        }
        if let Some((runtime, stream)) = &mut self.tokio {
            runtime.block_on(async {
                for _ in 0..rounds {
                    let start = Instant::now();
                    stream.write_all(bytes).await?;
                    stream.read_exact(bytes).await?;
                    to.add(start.elapsed());
                }
                Ok::<(), std::io::Error>(())
            })?;
        }
        Ok(())
    }
}

/// Several echo servers that are asked at once: what waiting for several replicas takes at the least.
pub(crate) struct Fan(Vec<Echo>);

impl Fan {
    pub(crate) fn start(servers: usize, size: usize) -> Outcome<Self> {
        Ok(Self((0..servers).map(|_| Echo::start(Kind::Blocking, size)).collect::<Outcome<_>>()?))
    }

    /// Binds all servers to some processors.
    pub(crate) fn bind(&self, cpus: &[usize]) -> Outcome<()> {
        self.0.iter().try_for_each(|echo| echo.server.bind(cpus))
    }

    /// Adds `rounds` rounds to `to`: each sends to all servers and waits for all answers.
    pub(crate) fn measure(&mut self, rounds: usize, to: &mut Latencies) -> Outcome<()> {
        for _ in 0..rounds {
            let start = Instant::now();
            for Echo { bytes, blocking, .. } in &mut self.0 {
                blocking.iter_mut().try_for_each(|stream| stream.write_all(bytes))?;
            }
            for Echo { bytes, blocking, .. } in &mut self.0 {
                blocking.iter_mut().try_for_each(|stream| stream.read_exact(bytes))?;
            }
            to.add(start.elapsed());
        }
        Ok(())
    }
}
