//! The bus of a cluster, behind proxies, so that a test can cut a node off from
//! its peers while clients still reach it.
//!
//! Each node connects from an address of its own, by which a proxy knows the
//! source of a connection.

use std::net::{IpAddr, Ipv4Addr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The proxies in front of all nodes' bus ports.
#[derive(Debug)]
pub(crate) struct Bus {
    ports: Vec<u16>,
    isolated: watch::Sender<Option<usize>>,
}

impl Bus {
    /// Starts a proxy for each of these ports.
    pub(crate) fn start(upstreams: Vec<u16>) -> Self {
        let (isolated, receiver) = watch::channel(None);
        let (sender, ports) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(serve(upstreams, receiver, &sender));
        });
        Self {
            ports: ports.recv().expect("the proxies start"),
            isolated,
        }
    }

    /// Returns the port at which the peers reach a node.
    pub(crate) fn port(&self, node: usize) -> u16 {
        self.ports[node]
    }

    /// Closes all connections between this node and its peers, and makes no new
    /// ones.
    pub(crate) fn isolate(&self, node: usize) {
        self.isolated.send_replace(Some(node));
    }
}

/// Returns the address from which a node connects.
pub(crate) fn source_of(node: usize) -> IpAddr {
    let last = u8::try_from(node + 2).expect("a small cluster");
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// Forwards connections until the bus is dropped.
async fn serve(
    upstreams: Vec<u16>,
    mut isolated: watch::Receiver<Option<usize>>,
    sender: &std::sync::mpsc::Sender<Vec<u16>>,
) {
    let nodes = upstreams.len();
    let mut ports = Vec::new();
    for (target, upstream) in upstreams.into_iter().enumerate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        ports.push(listener.local_addr().expect("its address").port());
        let isolated = isolated.clone();
        tokio::spawn(async move {
            while let Ok((peer, address)) = listener.accept().await {
                let source = (0..nodes).find(|node| source_of(*node) == address.ip());
                tokio::spawn(forward(peer, source, target, upstream, isolated.clone()));
            }
        });
    }
    sender.send(ports).expect("the receiver waits");
    while isolated.changed().await.is_ok() {}
}

async fn forward(
    mut peer: TcpStream,
    source: Option<usize>,
    target: usize,
    upstream: u16,
    mut isolated: watch::Receiver<Option<usize>>,
) {
    let Ok(mut node) = TcpStream::connect(("127.0.0.1", upstream)).await else {
        return;
    };
    let is_cut = |isolated: &Option<usize>| {
        isolated.is_some() && (*isolated == source || *isolated == Some(target))
    };
    tokio::select! {
        // Otherwise the first bytes of a new connection pass.
        biased;
        _ = isolated.wait_for(is_cut) => {}
        _ = tokio::io::copy_bidirectional(&mut peer, &mut node) => {}
    }
}
