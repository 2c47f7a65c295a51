//! Opening a TCP connection to a host, which may have several addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};

use crate::backend::staggered::first_success;

/// How long a connection is idle before the system probes it. Load balancers
/// and firewalls forget idle connections without telling either side, the
/// shortest that we know of after four minutes. A probe is traffic to them.
const PROBE_AFTER: Duration = Duration::from_secs(60);

/// The time between two probes without an answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How many probes may stay unanswered. One lost packet proves nothing.
const PROBES: u32 = 3;

/// Connects to one address of `host`.
pub(super) async fn dial(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    // We resolve the name for each connection: after a failover a managed
    // service gives it another address.
    let addresses = lookup_host((host, port)).await?.collect();
    let stream = connect_any(interleave(addresses), timeout).await?;
    // Requests are small and must leave at once. We collect them ourselves.
    stream.set_nodelay(true)?;
    detect_dead_peer(&stream);
    Ok(stream)
}

/// Lets the system find out that the peer, or the way to it, is gone. Requests
/// have timeouts of our own. This is for connections without any, and for
/// requests that their callers have given up.
fn detect_dead_peer(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER);
    #[cfg(any(
        target_os = "android",
        target_os = "freebsd",
        target_os = "linux",
        target_vendor = "apple",
        windows
    ))]
    let keepalive = keepalive.with_interval(PROBE_INTERVAL).with_retries(PROBES);
    // A system that lacks one of these options still has a usable socket.
    let _ = socket.set_tcp_keepalive(&keepalive);
    // Without it, Linux repeats unacknowledged bytes for a quarter of an hour.
    // It also ends a connection at the first probe after this time, so it must
    // not be shorter than all probes together.
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let _ = socket.set_tcp_user_timeout(Some(PROBE_AFTER + PROBES * PROBE_INTERVAL));
}

/// Connects to the first of `addresses` that accepts.
async fn connect_any(addresses: Vec<SocketAddr>, timeout: Duration) -> io::Result<TcpStream> {
    let attempts = addresses.into_iter().map(TcpStream::connect).collect();
    let connected = first_success(attempts, timeout).await;
    connected.map_err(|mut errors| {
        let no_address = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        errors.pop().unwrap_or_else(no_address)
    })
}

/// Alternates between IPv6 and IPv4, starting with the resolver's first choice:
/// where one family is broken, every second attempt still works.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let count = addresses.len();
    let prefers_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let is_preferred = |address: &SocketAddr| address.is_ipv6() == prefers_ipv6;
    let (preferred, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_preferred);
    let mut preferred = preferred.into_iter();
    let mut others = others.into_iter();
    let mut interleaved = Vec::with_capacity(count);
    while interleaved.len() < count {
        interleaved.extend(preferred.next());
        interleaved.extend(others.next());
    }
    interleaved
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use testkit::SilentAddress;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn address_families_are_interleaved() {
        let parse = |text: &&str| text.parse().unwrap();
        let order = |addresses: &[&str]| -> Vec<String> {
            let addresses = interleave(addresses.iter().map(parse).collect());
            addresses.iter().map(ToString::to_string).collect()
        };
        let (a, b, c) = ("[::1]:1", "[::2]:1", "[::3]:1");
        let (d, e) = ("1.0.0.1:1", "1.0.0.2:1");
        assert_eq!(order(&[a, b, c, d]), [a, d, b, c]);
        assert_eq!(order(&[d, a, b, e]), [d, a, e, b]);
        assert_eq!(order(&[]), [""; 0]);
    }

    /// The first address had all of the time, so a name never connected while
    /// its first address dropped packets.
    #[tokio::test]
    async fn silent_first_address_is_passed_over() {
        let silent = SilentAddress::start(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let up = listener.local_addr().unwrap();
        let addresses = vec![silent.address(), up];
        // Far below the system's own timeout, and far above the delay.
        let timeout = Duration::from_secs(30);
        let stream = tokio::time::timeout(timeout, connect_any(addresses, timeout)).await;
        let stream = stream.expect("an attempt for the second address").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), up);
    }

    /// Idle connections had no keepalive, and unacknowledged bytes no limit.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn system_watches_over_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = dial("127.0.0.1", port, Duration::from_secs(30)).await;
        let stream = stream.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        let limit = Duration::from_secs(90);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(limit));
    }

    #[tokio::test]
    async fn name_without_address_is_an_error() {
        let error = connect_any(Vec::new(), Duration::from_secs(1)).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
