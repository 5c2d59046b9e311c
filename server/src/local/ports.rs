//! Ports of the loopback address that stay with whoever drew them while nobody listens on them. It knows sockets, and
//! nothing of nodes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// Ports that are held until this is dropped: the system gives them to nobody else, neither to one who asks for any
/// free port nor to an outgoing connection, so a node that is down finds its own free when it comes back.
///
/// Each is bound and does not listen. Address reuse, which every listener here asks for as well, lets a node listen on
/// it all the same; a connection to it while no node listens is refused.
#[derive(Debug, Default)]
pub struct HeldPorts {
    numbers: Vec<u16>,
    sockets: Vec<TcpSocket>,
}

impl HeldPorts {
    /// Holds `count` free ports, all different.
    ///
    /// # Errors
    /// The system has no more ports or sockets.
    pub fn draw(count: usize) -> io::Result<HeldPorts> {
        let sockets = (0..count).map(|_| bind(0)).collect::<io::Result<Vec<TcpSocket>>>()?;
        let port = |socket: &TcpSocket| socket.local_addr().map(|address| address.port());
        let numbers = sockets.iter().map(port).collect::<io::Result<Vec<u16>>>()?;
        Ok(HeldPorts { numbers, sockets })
    }

    /// Holds those of `numbers` that nobody has; who listens on another one learns it then.
    pub fn of(numbers: Vec<u16>) -> HeldPorts {
        let sockets = numbers.iter().filter_map(|&number| bind(number).ok()).collect();
        HeldPorts { numbers, sockets }
    }

    /// Which they are.
    pub fn numbers(&self) -> &[u16] {
        &self.numbers
    }

    /// Holds these too.
    pub fn join(&mut self, other: HeldPorts) {
        self.numbers.extend(other.numbers);
        self.sockets.extend(other.sockets);
    }
}

fn bind(number: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, number)))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn held_ports_are_listened_on_again_and_again_and_given_to_nobody_else() {
        let held = HeldPorts::draw(60).expect("ports");
        let ours: BTreeSet<u16> = held.numbers().iter().copied().collect();
        assert_eq!(ours.len(), 60);
        let others = HeldPorts::draw(60).expect("ports");
        assert!(others.numbers().iter().all(|number| !ours.contains(number)));
        let at = (Ipv4Addr::LOCALHOST, held.numbers()[7]);
        for _ in 0..3 {
            let refused = TcpStream::connect(at).expect_err("nobody listens").kind();
            assert_eq!(refused, io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(at).expect("it is ours");
            let stream = TcpStream::connect(at).expect("somebody listens");
            assert!(TcpListener::bind(at).is_err(), "one listener at a time");
            drop((listener, stream));
        }
        assert_eq!(HeldPorts::of(vec![at.1]).sockets.len(), 1);
    }
}
