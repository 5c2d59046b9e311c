//! Real time for the loops: a clock from a shared epoch, and a wait that is exact to some microseconds. The runtime's
//! own timer counts milliseconds, which would delay, and so slander, every request of an open loop.

use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::Nanos;

/// A clock and one timer of one worker. Must be made inside of a runtime.
#[derive(Debug)]
pub struct Clock {
    epoch: Instant,
    timer: AsyncFd<OwnedFd>,
    armed: Nanos,
}

impl Clock {
    /// Counts from `epoch`.
    pub fn new(epoch: Instant) -> std::io::Result<Clock> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // Deprecated for types that may change their descriptor under way, in favour of an unsafe twin; an `OwnedFd`
        // cannot.
        #[allow(deprecated)]
        let timer = AsyncFd::new(timer)?;
        Ok(Clock { epoch, timer, armed: Nanos::MAX })
    }

    /// Nanoseconds since the epoch.
    pub fn now(&self) -> Nanos {
        self.epoch.elapsed().as_nanos() as Nanos
    }

    /// Ready once `until` has come.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, until: Nanos) -> Poll<()> {
        loop {
            let left = until.saturating_sub(self.now());
            if left == 0 {
                return Poll::Ready(());
            }
            if self.armed != until {
                let (tv_sec, tv_nsec) = ((left / 1_000_000_000) as i64, (left % 1_000_000_000) as i64);
                let once = Itimerspec {
                    it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
                    it_value: Timespec { tv_sec, tv_nsec },
                };
                timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)
                    .expect("a timer of ours takes any time below 292 years");
                self.armed = until;
            }
            let Poll::Ready(guard) = self.timer.poll_read_ready(cx) else { return Poll::Pending };
            let mut expirations = [0; 8];
            // Nothing to read means that the readiness was an older one.
            let _ = rustix::io::read(self.timer.get_ref(), &mut expirations);
            if let Ok(mut guard) = guard {
                guard.clear_ready();
            }
            self.armed = Nanos::MAX;
        }
    }
}

/// A runtime for one worker: one thread, its sockets and its clock.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn waits_end_when_they_should_and_can_be_shortened() {
        let runtime = runtime().unwrap();
        runtime.block_on(async {
            let mut clock = Clock::new(Instant::now()).unwrap();
            for wait in [0, 1, 50_000, 300_000, 2_000_000] {
                let until = clock.now() + wait;
                // Armed for later first: the nearer time must win.
                let _ = poll_fn(|cx| Poll::Ready(clock.poll_until(cx, until + 3_600_000_000_000))).await;
                poll_fn(|cx| clock.poll_until(cx, until)).await;
                assert!(clock.now() >= until);
            }
        });
    }
}
