//! On which connection of this node each client is reached: parts of its queries go there.

use std::collections::BTreeMap;

use coppice_client::wire::ClientId;

use crate::cost::ClientBytes;

/// The connections of all clients, of any worker.
#[derive(Debug, Default)]
pub struct ClientConnections(BTreeMap<ClientId, Client>);

#[derive(Debug, Default)]
struct Client {
    /// The worker that has each, and its number there.
    connections: Vec<(usize, u64)>,
    bytes: ClientBytes,
}

impl ClientConnections {
    /// The connection that the client opened last, of those that stand.
    pub fn newest(&self, client: ClientId) -> Option<(usize, u64)> {
        self.0.get(&client)?.connections.last().copied()
    }

    /// A client said hello on this connection. A client may have several for a while: one that tries another beside a
    /// silent one goes on with whichever is heard first.
    ///
    /// Returns the bytes that the client holds, on all of them.
    pub fn opened(&mut self, client: ClientId, connection: (usize, u64)) -> ClientBytes {
        let known = self.0.entry(client).or_default();
        known.connections.push(connection);
        ClientBytes::clone(&known.bytes)
    }

    /// How many connections have said whose they are.
    pub fn connections(&self) -> usize {
        self.0.values().map(|client| client.connections.len()).sum()
    }

    /// A connection ended; the others of the client stay.
    pub fn ended(&mut self, client: ClientId, connection: (usize, u64)) {
        if let Some(known) = self.0.get_mut(&client) {
            known.connections.retain(|&known| known != connection && !mutant!(spare_forgets_client));
            if known.connections.is_empty() {
                self.0.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that closed the spare connection again was once reached no more on the one that it kept: its queries
    /// across partitions got no part from this node until it connected anew.
    #[test]
    fn a_client_that_closes_a_spare_connection_is_reached_on_the_other() {
        let (mut clients, client) = (ClientConnections::default(), ClientId(7));
        clients.opened(client, (0, 1));
        clients.opened(client, (1, 1));
        assert_eq!(clients.newest(client), Some((1, 1)));
        clients.ended(client, (1, 1));
        assert_eq!(clients.newest(client), Some((0, 1)));
        clients.ended(client, (0, 1));
        assert_eq!(clients.newest(client), None);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_client_that_is_forgotten_with_its_spare_connection_is_caught() {
        let test = "connection::clients::tests::a_client_that_closes_a_spare_connection_is_reached_on_the_other";
        planted::assert_caught("spare_forgets_client", test);
    }
}
