//! Opening a TCP connection to a host, which may have several addresses.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};

use crate::backend::staggered::first_success;

/// Connects to one address of `host`.
pub(super) async fn dial(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    // We resolve the name for each connection: after a failover a managed
    // service gives it another address.
    let addresses = lookup_host((host, port)).await?.collect();
    let stream = connect_any(interleave(addresses), timeout).await?;
    // Requests are small and must leave at once. We collect them ourselves.
    stream.set_nodelay(true)?;
    Ok(stream)
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

    #[tokio::test]
    async fn name_without_address_is_an_error() {
        let error = connect_any(Vec::new(), Duration::from_secs(1)).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
