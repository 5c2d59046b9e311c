//! One connection to one node, frame by frame: what the client library builds upon.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use coppice_client::wire::control::{decode_control, encode_control};
use coppice_client::wire::{ClientId, Frame, FrameDecoder, Hello, Kind, MapGet, MapReply, PROTOCOL};

use super::patience;

pub struct Raw {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Raw {
    /// Connects as `client` and is greeted.
    #[track_caller]
    pub fn connect(address: SocketAddr, client: ClientId) -> Raw {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let (protocol_min, protocol_max) = (*PROTOCOL.start(), *PROTOCOL.end());
        let hello = Hello { protocol_min, protocol_max, client, ..Hello::default() };
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::Hello, 1, &hello);
        let mut raw = Raw { stream, decoder: FrameDecoder::default() };
        assert_eq!(raw.ask(&out).kind, Kind::HelloOk as u8);
        raw
    }

    #[track_caller]
    pub fn send(&mut self, out: &[u8]) {
        self.stream.write_all(out).expect("it reads");
    }

    /// The next frame that comes within this time.
    #[track_caller]
    pub fn frame_within(&mut self, bound: Duration) -> Option<Frame> {
        let mut buffer = [0; 65536];
        let deadline = Instant::now() + bound;
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("its frames are good") {
                return Some(frame);
            }
            let left = deadline.checked_duration_since(Instant::now())?.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).expect("a socket");
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the connection was closed"),
                Ok(count) => self.decoder.feed(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether the node closes the connection within this time; what it says meanwhile is lost.
    pub fn is_closed_within(&mut self, bound: Duration) -> bool {
        self.stream.set_read_timeout(Some(bound)).expect("a socket");
        let mut buffer = [0; 4_096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        }
    }

    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        self.frame_within(patience()).expect("it answers")
    }

    #[track_caller]
    pub fn ask(&mut self, out: &[u8]) -> Frame {
        self.send(out);
        self.frame()
    }

    /// The node's map, none while it is starting, and who leads.
    #[track_caller]
    pub fn map(&mut self) -> MapReply {
        let mut out = BytesMut::new();
        encode_control(&mut out, Kind::MapGet, 9, &MapGet::default());
        self.send(&out);
        loop {
            // Parts of a query that was given up may have waited for this client.
            let frame = self.frame();
            if Kind::from_u8(frame.kind) == Some(Kind::Map) {
                return decode_control(&frame.body, "map").expect("readable");
            }
        }
    }
}
