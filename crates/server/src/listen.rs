//! Sockets: accepting, limits of connections and headers, an orderly end.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Most headers of a request, most bytes of them, and longest time for them to arrive.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 64 << 10;
const HEADER_TIME: Duration = Duration::from_secs(15);
/// Most connections at once.
const MAX_CONNECTIONS: usize = 1024;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// `ADDRESS:PORT`.
    Tcp(SocketAddr),
    /// `unix:PATH`, for this user only.
    Unix(PathBuf),
}

impl Listen {
    /// Can only programs on this machine reach it?
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err("unix: needs a path".into()) } else { Ok(Self::Unix(path.into())) };
        }
        let text = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
        text.parse().map(Self::Tcp).map_err(|_| "expected ADDRESS:PORT, localhost:PORT or unix:PATH".into())
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound socket.
pub struct Socket(Kind);

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes a unix socket's file when the server ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Binds. A socket that a dead server left behind is replaced; one that answers, or anything else, is not.
    ///
    /// # Errors
    /// The system's.
    pub async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => Ok(Self(Kind::Tcp(TcpListener::bind(address).await?))),
            Listen::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self(Kind::Unix(listener, SocketFile(path.clone()))))
            }
        }
    }

    /// Where it is: the port that the system chose where port 0 was asked for.
    ///
    /// # Errors
    /// The system's.
    pub fn listens(&self) -> io::Result<Listen> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Kind::Unix(_, file) => Ok(Listen::Unix(file.0.clone())),
        }
    }

    async fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Tokens are small and should not wait for each other.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Kind::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "a server answers there already"));
            }
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and is not a socket")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Serves connections until `stop`; then takes no new ones. Returns what waits for those that are open.
pub(crate) async fn serve(socket: Socket, app: Router, stop: impl Future<Output = ()>) -> GracefulShutdown {
    let graceful = GracefulShutdown::new();
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = Arc::clone(&connections).acquire_owned().await;
            (permit, socket.accept().await)
        };
        let (permit, stream) = tokio::select! {
            biased;
            () = &mut stop => return graceful,
            accepted = accepted => accepted,
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(e) => {
                // Out of files, for example: others may close theirs.
                tracing::warn!("a connection was not accepted: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let service = TowerToHyperService::new(app.clone());
        // A client that goes away, or speaks no HTTP, ends its connection and nothing else.
        match stream {
            Stream::Tcp(stream) => {
                let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
                tokio::spawn(async move {
                    let _ = connection.await;
                    drop(permit);
                });
            }
            Stream::Unix(stream) => {
                let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
                tokio::spawn(async move {
                    let _ = connection.await;
                    drop(permit);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_who_reaches_them() {
        for (text, local) in [
            ("127.0.0.1:8080", true),
            ("localhost:0", true),
            ("[::1]:80", true),
            ("unix:/run/x.sock", true),
            ("0.0.0.0:80", false),
            ("[::]:80", false),
            ("192.168.1.2:80", false),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_local(), local, "{text}");
        }
        for bad in ["", "8080", ":8080", "unix:", "example.com:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
