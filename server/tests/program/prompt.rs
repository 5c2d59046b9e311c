//! The demo's prompt as a person has it: at a terminal, with an editor, a history, Tab, Ctrl-C and Ctrl-D.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::common::wait_for;
use crate::support::{Scratch, demo_beside_others, lives, patience, program};

/// Keys as a terminal sends them.
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_R: &str = "\x12";
const UP: &str = "\x1b[A";

/// A demo, and the terminal at which somebody sits.
struct Seat {
    demo: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// What was shown and not looked at yet.
    shown: String,
    scratch: Scratch,
}

impl Seat {
    fn at_demo(words: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
        grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("it is ours");
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).expect("it has a size");
        let path = ptsname(&terminal, Vec::new()).expect("a name");
        let line = open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end");
        let scratch = Scratch::new("prompt");
        let demo = program();
        // The terminal is the controlling one: Ctrl-C is a signal for those in its foreground.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(demo.get_program()).arg("demo").args(words);
        command.env("TMPDIR", &scratch.0).env("TERM", "xterm");
        for (name, value) in demo.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let end = || Stdio::from(line.try_clone().expect("a descriptor"));
        let demo = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid is there");
        let keys = File::from(terminal);
        let mut shown = keys.try_clone().expect("a descriptor");
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = shown.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { demo, keys, screen, shown: String::new(), scratch }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes them");
    }

    /// Waits until the screen shows this, and returns what it showed before.
    #[track_caller]
    fn sees(&mut self, text: &str) -> String {
        let deadline = Instant::now() + patience();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(error) => {
                    let tail = self.shown.char_indices().rev().nth(1_000).map_or(0, |(at, _)| at);
                    panic!("no `{text}` ({error}) in {:?}", &self.shown[tail..]);
                }
            }
        }
    }

    /// Waits for a prompt that nothing is typed at.
    #[track_caller]
    fn prompted(&mut self) {
        self.sees("coppice> ");
    }

    #[track_caller]
    fn ended(&mut self) -> std::process::ExitStatus {
        let demo = &mut self.demo;
        wait_for("the demo ends", patience(), || demo.try_wait().expect("it can be waited for"))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.demo.kill();
        let _ = self.demo.wait();
    }
}

#[test]
fn a_line_is_recalled_searched_and_completed() {
    let _beside = demo_beside_others();
    let mut seat = Seat::at_demo(&["--nodes", "1", "--partitions", "2"]);
    seat.prompted();
    seat.types("put apple red\r");
    seat.sees("ok  p1#");
    seat.prompted();
    seat.types(&format!("{UP}\r"));
    seat.sees("was red");
    seat.prompted();
    // The names are those of this cluster.
    seat.types("leader tr\tp\t");
    seat.sees("p0  p1  p2");
    seat.sees("leader transfer p");
    seat.types("1 \t");
    seat.sees("leader transfer p1 n1 ");
    seat.types(CTRL_C);
    seat.prompted();
    seat.types(&format!("{CTRL_R}app"));
    seat.sees("(reverse-i-search)`app': put apple red");
    seat.types("\r");
    seat.sees("was red");
    seat.prompted();
    seat.types(CTRL_D);
    assert!(seat.ended().success());
    assert_eq!(std::fs::read_dir(&seat.scratch.0).expect("a directory").count(), 0, "nothing is left");
}

/// Ctrl-C in `load` or in a fault ended the whole cluster.
#[test]
fn ctrl_c_ends_what_runs_and_says_at_an_empty_line_how_to_quit() {
    let _beside = demo_beside_others();
    let mut seat = Seat::at_demo(&["--nodes", "1", "--partitions", "1"]);
    seat.prompted();
    // A watch ends by itself on Ctrl-C, and gives the screen back.
    for (command, runs, says) in [
        ("status --watch", "directory  ", "\u{1b}[?1049l"),
        ("wait degraded", "wait degraded", "interrupted: wait degraded"),
    ] {
        seat.types(&format!("{command}\r"));
        seat.sees(runs);
        // A command runs once the terminal is an ordinary one again.
        let keys = seat.keys.try_clone().expect("a descriptor");
        wait_for("it runs", patience(), || {
            tcgetattr(&keys).expect("a terminal").local_modes.contains(LocalModes::ISIG).then_some(())
        });
        seat.types(CTRL_C);
        seat.sees(says);
        seat.prompted();
    }
    seat.types("put a");
    seat.sees("put a");
    seat.types(CTRL_C);
    let before = seat.sees("coppice> ");
    assert!(!before.contains("to stop the cluster"), "{before:?}");
    seat.types(CTRL_C);
    seat.sees("to stop the cluster: quit, or Ctrl-D");
    seat.types("put apple red\r");
    seat.sees("ok  p1#");
    seat.prompted();
    seat.types("quit\r");
    assert!(seat.ended().success());
}

#[test]
fn what_the_cluster_says_meanwhile_stands_above_what_is_typed() {
    let _beside = demo_beside_others();
    let mut seat = Seat::at_demo(&["--nodes", "3", "--partitions", "1"]);
    let pid = {
        seat.sees("  n3  ");
        seat.sees("pid ");
        let digits = seat.sees("\r");
        digits.trim().parse::<u32>().expect("a number")
    };
    seat.prompted();
    seat.types("get app");
    seat.sees("get app");
    crate::support::signal(pid, "KILL");
    seat.sees("n3 ended unasked: signal 9");
    // The line is drawn again below it, and goes on.
    seat.sees("coppice> get app");
    seat.types("le\r");
    seat.sees("not found");
    seat.prompted();
    seat.types("resta\t\t\r");
    seat.sees("n3 up in ");
    seat.prompted();
    // Whoever ends the demo from outside gets the terminal back as it was.
    let demo = seat.demo.id();
    crate::support::signal(demo, "TERM");
    assert!(seat.ended().success());
    assert!(tcgetattr(&seat.keys).expect("a terminal").local_modes.contains(LocalModes::ECHO | LocalModes::ICANON));
    assert!(!lives(demo) && !lives(pid));
}
