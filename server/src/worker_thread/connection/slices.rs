//! What a connection takes of what its client sent: a slice at a time, between the turns of others.

use std::cell::RefCell;
use std::rc::Rc;

use coppice_client::wire::{FrameDecoder, Refusal as Refused};
use coppice_core::connection::frame_bytes_max;

use super::Connection;
use super::serve::handle;
use super::state::refuse_and_close;
use crate::worker_thread::WorkerThread;

/// Work of frames that a connection has taken as soon as they are read, a key or a [`FRAME_BYTES`] each. For the rest
/// of what was read connections wait for each other: one slice of one of them between two looks at all sockets.
const FIRST_WORK: usize = 1_024;

/// Work of such a slice.
pub(super) const SLICE_WORK: usize = 4_096;

/// Bytes of a frame that cost as much to decode as a key to read.
const FRAME_BYTES: usize = 64;

/// Bytes of an answer that cost as much to find.
const ANSWER_BYTES: u64 = 1_024;

/// Reads what is there, up to one buffer, and hands on every whole frame. `false`: the connection is gone.
pub(super) fn receive(thread: &RefCell<WorkerThread>, connection: &Rc<Connection>, decoder: &mut FrameDecoder) -> bool {
    let begun = thread.borrow().clock.begins();
    let stepped = thread.borrow().clock.stepped();
    match connection.stream.read(decoder.space()) {
        Ok(0) => return false,
        Ok(_) => {}
        Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
    }
    connection.heard.set(begun);
    take_frames(thread, connection, decoder, FIRST_WORK);
    thread.borrow().clock.received(begun, stepped);
    true
}

/// Hands on frames that are there, as far as the connection has room for their requests, so much work at most.
pub(super) fn take_frames(
    thread: &RefCell<WorkerThread>,
    connection: &Rc<Connection>,
    decoder: &mut FrameDecoder,
    work_max: usize,
) {
    let mut work = 0;
    while work < work_max && connection.may_read() {
        decoder.set_frame_bytes_max(frame_bytes_max(connection.has_greeted()));
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                work += 1 + frame.body.len() / FRAME_BYTES;
                let held = connection.held_bytes();
                handle(thread, connection, frame);
                work += (connection.held_bytes().saturating_sub(held) / ANSWER_BYTES) as usize;
            }
            Ok(None) => break,
            Err(error) => {
                refuse_and_close(thread, connection, 0, Refused::bad_request(&error));
                break;
            }
        }
    }
}
