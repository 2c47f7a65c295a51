//! An address at which nothing answers.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long a connection on loopback takes at most, unless it is dropped.
const PATIENCE: Duration = Duration::from_millis(500);

/// An address that drops packets, as behind a firewall: connecting there
/// neither succeeds nor fails.
#[derive(Debug)]
pub struct SilentAddress {
    address: SocketAddr,
    _listener: TcpListener,
    /// The connections that fill the queue of those to be accepted. Further
    /// ones are dropped.
    _queue: Vec<TcpStream>,
}

impl SilentAddress {
    /// Makes this port of `ip` silent, or a free one if `port` is zero.
    ///
    /// # Panics
    ///
    /// If the port is in use, or the system accepts connections without limit.
    #[must_use]
    pub fn start(ip: IpAddr, port: u16) -> Self {
        // On a thread of its own: the caller may be on a runtime.
        let listening = std::thread::spawn(move || listen(SocketAddr::new(ip, port)));
        let listener = listening.join().expect("no panic").expect("a free port");
        let address = listener.local_addr().expect("the port's address");
        let connect = |_| TcpStream::connect_timeout(&address, PATIENCE).ok();
        let queue: Vec<_> = (0..100).map_while(connect).collect();
        assert!(queue.len() < 100, "the queue is never full");
        Self {
            address,
            _listener: listener,
            _queue: queue,
        }
    }

    /// Returns the address that drops packets.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens with the shortest queue.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.bind(address)?;
    socket.listen(0)?.into_std()
}
