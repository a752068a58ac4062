//! Questions about paths that may get no answer, because a file system on the way is a user's own (FUSE), or
//! its server is dead.
//!
//! Each question has its own thread. A hanging question keeps its thread until the file system answers. Until
//! then, questions about the same path fail at once, so each path has at most one hanging thread.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// How long a question may take. A disk that has to spin up takes longer, and callers ask again.
const LIMIT: Duration = Duration::from_secs(1);

/// How long a question may take while others have no answer: many paths may lead over the same file system.
const LIMIT_BESIDE_OTHERS: Duration = Duration::from_millis(100);

/// Questions with answers of one kind.
#[derive(Debug)]
pub(super) struct Patience<T> {
    /// The answers that are missing, by the path of their question.
    missing: Mutex<BTreeMap<String, Receiver<T>>>,
}

impl<T> Default for Patience<T> {
    fn default() -> Self {
        Self {
            missing: Mutex::default(),
        }
    }
}

impl<T: Send + 'static> Patience<T> {
    /// Asks about a path.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when no answer comes in time; the system's error when no thread starts.
    pub(super) fn ask(
        &self,
        path: &str,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let limit = if self.missing.lock().is_empty() {
            LIMIT
        } else {
            LIMIT_BESIDE_OTHERS
        };
        self.ask_for(limit, path, question)
    }

    fn ask_for(
        &self,
        limit: Duration,
        path: &str,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let mut missing = self.missing.lock();
        if let Some(former) = missing.remove(path) {
            // An answer that has come meanwhile may be out of date, so ask again.
            if matches!(former.try_recv(), Err(TryRecvError::Empty)) {
                missing.insert(path.to_owned(), former);
                return Err(unanswered());
            }
        }
        drop(missing);
        let (told, answer) = sync_channel(1);
        let thread = thread::Builder::new().name("path".to_owned());
        // Sending fails if the receiver is gone, because no one waits any more.
        thread.spawn(move || drop(told.send(question())))?;
        match answer.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => {
                self.missing.lock().insert(path.to_owned(), answer);
                Err(unanswered())
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its thread has failed")),
        }
    }
}

fn unanswered() -> io::Error {
    let text = "a file system on the way does not answer (findmnt lists what is mounted; a FUSE mount of a user, or a \
                server that hangs?): end it, or name a path that no user can mount over";
    io::Error::new(io::ErrorKind::TimedOut, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Threat model: M103
    #[test]
    fn a_question_without_an_answer_is_given_up_until_one_comes() {
        let patience = Patience::default();
        let (answers, hanging) = sync_channel::<u8>(0);
        let hangs = patience.ask_for(Duration::ZERO, "/home/a", move || hanging.recv());
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        // Neither another question about the path, which gets no thread, nor one about another path waits for
        // the first.
        let again = patience.ask("/home/a", || Ok(2));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let other = patience.ask_for(Duration::from_secs(600), "/srv", || Ok(3));
        assert_eq!(other.unwrap(), Ok(3));
        answers.send(1).unwrap();
        // The first question's thread may need a moment to pass the answer on.
        let asked = || patience.ask_for(Duration::from_secs(600), "/home/a", || Ok(4));
        let answer = std::iter::repeat_with(asked).find_map(Result::ok);
        assert_eq!(answer, Some(Ok(4)), "not the former answer");
    }
}
