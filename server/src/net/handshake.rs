//! Carries the frames that open a connection at the peer port ([`coppice_core::handshake`]). [`dial`] and
//! [`dial_blocking`] say the first, [`crate::control`] answers.

use std::io;

use coppice_client::wire::{Frame, FrameDecoder};
use coppice_core::handshake::{
    HELLO_BYTES_MAX, Objection, PeerHello, Presence, WelcomeError, frame_of, judge_answer, refusal,
};
use coppice_core::wire::peer_frame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Why a connection did not open.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// There is no connection, or it ended.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// One of its ends refuses the other.
    #[error(transparent)]
    Welcome(#[from] WelcomeError),
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        match error {
            HandshakeError::Io(error) => error,
            HandshakeError::Welcome(refused) => io::Error::new(io::ErrorKind::PermissionDenied, refused),
        }
    }
}

/// Opens a connection that stands: says `hello`, hears who answers. Nothing was received behind that.
///
/// # Errors
/// [`HandshakeError`]; the connection is of no use then.
pub async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hello: &PeerHello,
    judge: impl FnOnce(&Presence) -> Result<(), Objection>,
) -> Result<Option<Presence>, HandshakeError> {
    stream.write_all(&frame_of(peer_frame::HELLO, hello)).await?;
    stream.flush().await?;
    let mut decoder = FrameDecoder::new(HELLO_BYTES_MAX);
    let frame = read_frame(stream, &mut decoder).await?;
    let judged = judge_answer(hello, &frame, &decoder, judge);
    if let Err(WelcomeError::Unwanted(text)) = &judged {
        // It may be gone: then it has nobody to tell.
        _ = stream.write_all(&refusal(text)).await;
        _ = stream.shutdown().await;
    }
    Ok(judged?)
}

/// The same on a blocking connection.
///
/// # Errors
/// As of [`dial`].
pub fn dial_blocking<S: io::Read + io::Write>(
    stream: &mut S,
    hello: &PeerHello,
    judge: impl FnOnce(&Presence) -> Result<(), Objection>,
) -> Result<Option<Presence>, HandshakeError> {
    stream.write_all(&frame_of(peer_frame::HELLO, hello))?;
    let mut decoder = FrameDecoder::new(HELLO_BYTES_MAX);
    let mut buffer = [0; HELLO_BYTES_MAX];
    let frame = loop {
        if let Some(frame) = decoder.next_frame().map_err(invalid)? {
            break frame;
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => decoder.feed(&buffer[..count]),
        }
    };
    let judged = judge_answer(hello, &frame, &decoder, judge);
    if let Err(WelcomeError::Unwanted(text)) = &judged {
        _ = stream.write_all(&refusal(text));
    }
    Ok(judged?)
}

/// Reads one frame; what came behind it stays in `decoder`.
///
/// # Errors
/// Those of the connection; `InvalidData`: what came is no frame.
pub async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S, decoder: &mut FrameDecoder) -> io::Result<Frame> {
    loop {
        if let Some(frame) = decoder.next_frame().map_err(invalid)? {
            return Ok(frame);
        }
        if stream.read_buf(decoder.space()).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
