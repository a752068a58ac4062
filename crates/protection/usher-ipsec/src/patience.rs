//! Follows paths, and gives up on those whose file system does not answer: a dead NFS server, or a
//! FUSE mount that its owner has stopped. All paths of a look-up share one budget of time, so the
//! caller never waits long for them, however many accounts have slow file systems of their own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::way::{self, Found, Trail};

/// How long a look-up may take, however slow its paths are.
const BUDGET: Duration = Duration::from_secs(1);

/// The additional time for each path: a policy may name thousands, and each takes some system
/// calls.
const EACH: Duration = Duration::from_micros(500);

/// A path that takes longer than this is slow: the others do not wait for it. It gets the time that they
/// leave, and comes after them at the next look-up.
const SLOW: Duration = Duration::from_millis(10);

/// Limit of paths that may be slow or hang at a time, each with a thread. Paths in system folders may
/// bring the number to twice as many, so that paths of accounts cannot take all threads. Further paths
/// are given up at once.
const MOST_SLOW: usize = 16;

/// The folders in which packages install programs; only root mounts there. Their paths come first, so
/// that paths of accounts do not take their time.
const FIRST: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/opt"];

/// The result of following a path. ETIMEDOUT: it hangs, or hung before and still does. EAGAIN: it was
/// not followed, because others have used up the time of the look-up, or there is no thread.
pub(crate) type Answer = Result<Found, Errno>;

/// An answer of the thread, with the path's trail. Without a trail, the next look-up follows the path
/// again.
type Followed = (Answer, Option<Trail>);

/// All answers of a look-up.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    pub by_path: BTreeMap<PathBuf, Answer>,
    /// The trail of all paths. None: the trail of some path is unknown.
    pub trail: Option<Arc<Trail>>,
}

/// Follows paths by a thread of its own. A path that hangs keeps its thread until the file system answers,
/// and the next path gets another thread.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    state: Arc<Mutex<State>>,
    follow: fn(&Path) -> Followed,
}

#[derive(Debug, Default)]
struct State {
    thread: Option<Thread>,
    /// Compares trails.
    comparer: Option<Comparer>,
    hanging: BTreeMap<PathBuf, Thread>,
    /// Paths that took longer than [`SLOW`] when they were followed last.
    slow: BTreeMap<PathBuf, Duration>,
    /// How many look-ups in a row had no time left for a path.
    passed_over: BTreeMap<PathBuf, u64>,
}

#[derive(Debug)]
struct Thread {
    paths: Sender<PathBuf>,
    answers: Receiver<Followed>,
}

#[derive(Debug)]
struct Comparer {
    trails: Sender<Arc<Trail>>,
    answers: Receiver<bool>,
    /// True while a question has no answer, because a file system hangs.
    is_asked: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self::with(way::follow)
    }
}

impl Patience {
    fn with(follow: fn(&Path) -> Followed) -> Self {
        Self {
            state: Arc::default(),
            follow,
        }
    }

    /// Follows each of these paths as [`way::follow`] does, within the budget. Paths in folders of the system
    /// come first, then the others, those that were slow last time at the end. Within each of these groups,
    /// paths for which earlier look-ups had no time come first, so that each has its turn.
    pub fn follow_all(&self, paths: BTreeSet<PathBuf>) -> Answers {
        let state = &mut *self.state.lock();
        let number = u32::try_from(paths.len()).unwrap_or(u32::MAX);
        let deadline = Instant::now() + BUDGET + EACH * number;
        state.slow.retain(|path, _| paths.contains(path));
        state.passed_over.retain(|path, _| paths.contains(path));
        let paths = state.in_turn(paths);
        let mut all = BTreeMap::new();
        let mut waiting = Vec::new();
        for path in paths {
            let most = MOST_SLOW << u32::from(is_of_system(&path));
            if waiting.len() + state.hanging.len() >= most {
                state.wait_for(&mut waiting, deadline, &mut all);
            }
            match state.follow(&path, most, deadline, self.follow) {
                Ok(answer) => {
                    if !matches!(answer.0, Err(Errno::AGAIN | Errno::TIMEDOUT)) {
                        state.slow.remove(&path);
                    }
                    all.insert(path, answer);
                }
                Err(slow) => waiting.push((path, slow)),
            }
        }
        state.wait_for(&mut waiting, deadline, &mut all);
        state.note_turns(&all);
        let mut answers = Answers::default();
        let mut whole = Some(Trail::default());
        for (path, (answer, trail)) in all {
            answers.by_path.insert(path, answer);
            whole = whole.zip(trail).map(|(mut whole, trail)| {
                whole.extend(trail);
                whole
            });
        }
        answers.trail = whole.map(Arc::new);
        answers
    }

    /// Returns whether this trail is unchanged. False also if comparing it takes too long.
    pub fn is_same(&self, trail: &Arc<Trail>) -> bool {
        let state = &mut *self.state.lock();
        let number = u32::try_from(trail.len()).unwrap_or(u32::MAX);
        let Some(comparer) = state.comparer.take().or_else(Comparer::start) else {
            return false;
        };
        let comparer = state.comparer.insert(comparer);
        let answer = comparer.ask(trail, SLOW + EACH * number);
        if answer == Err(RecvTimeoutError::Disconnected) {
            state.comparer = None;
        }
        answer.unwrap_or(false)
    }
}

fn is_of_system(path: &Path) -> bool {
    FIRST.iter().any(|folder| path.starts_with(folder))
}

/// A path that has not been answered yet.
struct Slow {
    thread: Thread,
    since: Instant,
}

impl State {
    /// Follows a path. Returns its thread if it is slow.
    fn follow(
        &mut self,
        path: &Path,
        most: usize,
        deadline: Instant,
        follow: fn(&Path) -> Followed,
    ) -> Result<Followed, Slow> {
        if let Some(thread) = self.hanging.get(path) {
            match thread.answers.try_recv() {
                Err(TryRecvError::Empty) => return Ok((Err(Errno::TIMEDOUT), None)),
                // That answer is as old as its question, so the path is followed again.
                Ok(_) | Err(TryRecvError::Disconnected) => self.hanging.remove(path),
            };
        }
        let since = Instant::now();
        // With less time left, a path that answers could seem to hang.
        if deadline.saturating_duration_since(since) < SLOW {
            return Ok((Err(Errno::AGAIN), None));
        }
        if self.hanging.len() >= most {
            return Ok((Err(Errno::TIMEDOUT), None));
        }
        let thread = match self.thread.take().map_or_else(|| Thread::start(follow), Ok) {
            Ok(thread) => thread,
            Err(error) => return Ok((Err(error), None)),
        };
        if thread.paths.send(path.into()).is_err() {
            return Ok((Err(Errno::AGAIN), None));
        }
        match thread.answers.recv_timeout(SLOW) {
            Ok(answer) => {
                self.thread = Some(thread);
                Ok(answer)
            }
            Err(RecvTimeoutError::Timeout) => Err(Slow { thread, since }),
            Err(RecvTimeoutError::Disconnected) => Ok((Err(Errno::AGAIN), None)),
        }
    }

    /// The paths in the order in which they are followed.
    fn in_turn(&self, paths: BTreeSet<PathBuf>) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = paths.into_iter().collect();
        paths.sort_by_key(|path| {
            let slow = self.slow.get(path).copied();
            let passed_over = self.passed_over.get(path).copied().unwrap_or_default();
            (
                Reverse(is_of_system(path)),
                slow.is_some(),
                Reverse(passed_over),
                slow,
            )
        });
        paths
    }

    /// Notes for which paths there was no time.
    fn note_turns(&mut self, all: &BTreeMap<PathBuf, Followed>) {
        for (path, (answer, _)) in all {
            match answer {
                Err(Errno::AGAIN) => *self.passed_over.entry(path.clone()).or_default() += 1,
                _ => drop(self.passed_over.remove(path)),
            }
        }
    }

    /// Waits for these paths until the deadline. Those without an answer then count as hanging.
    fn wait_for(
        &mut self,
        waiting: &mut Vec<(PathBuf, Slow)>,
        deadline: Instant,
        answers: &mut BTreeMap<PathBuf, Followed>,
    ) {
        for (path, Slow { thread, since }) in waiting.drain(..) {
            let left = deadline.saturating_duration_since(Instant::now());
            let answer = thread.answers.recv_timeout(left);
            self.slow.insert(path.clone(), since.elapsed());
            let answer = answer.unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => {
                    self.hanging.insert(path.clone(), thread);
                    (Err(Errno::TIMEDOUT), None)
                }
                RecvTimeoutError::Disconnected => (Err(Errno::AGAIN), None),
            });
            answers.insert(path, answer);
        }
    }
}

impl Thread {
    /// Starts a thread, which ends once this is dropped and its path has been followed.
    fn start(follow: fn(&Path) -> Followed) -> Result<Self, Errno> {
        let (paths, asked) = mpsc::channel::<PathBuf>();
        let (told, answers) = mpsc::channel();
        let follow = move || {
            for path in asked {
                if told.send(follow(&path)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("paths".into());
        thread.spawn(follow).map_err(|_| Errno::AGAIN)?;
        Ok(Self { paths, answers })
    }
}

impl Comparer {
    /// Starts a thread, which ends once this is dropped and its trail has been compared.
    fn start() -> Option<Self> {
        let (trails, asked) = mpsc::channel::<Arc<Trail>>();
        let (told, answers) = mpsc::channel();
        let compare = move || {
            for trail in asked {
                if told.send(trail.is_same()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("trails".into());
        thread.spawn(compare).ok()?;
        Some(Self {
            trails,
            answers,
            is_asked: false,
        })
    }

    fn ask(&mut self, trail: &Arc<Trail>, limit: Duration) -> Result<bool, RecvTimeoutError> {
        if self.is_asked {
            // That answer is as old as its question, which may have been about another trail.
            self.answers.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })?;
        }
        let sent = self.trails.send(Arc::clone(trail));
        sent.map_err(|_| RecvTimeoutError::Disconnected)?;
        self.is_asked = true;
        let is_same = self.answers.recv_timeout(limit)?;
        self.is_asked = false;
        Ok(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths below /home/slow take longer than [`SLOW`], others below /home longer than the test.
    fn follow(path: &Path) -> Followed {
        if path.starts_with("/home/slow") {
            std::thread::sleep(BUDGET / 4);
        } else if path.starts_with("/home") {
            std::thread::sleep(BUDGET * 30);
        }
        (Err(Errno::NOENT), None)
    }

    fn paths(folder: &str, number: usize) -> impl Iterator<Item = PathBuf> {
        (0..number).map(move |number| format!("{folder}/{number}").into())
    }

    fn answered(answers: &BTreeMap<PathBuf, Answer>, folder: &str) -> usize {
        let of_folder = answers.iter().filter(|(path, _)| path.starts_with(folder));
        let answered = of_folder.filter(|(_, answer)| matches!(answer, Err(Errno::NOENT)));
        answered.count()
    }

    // Threat model: P39
    #[test]
    fn paths_that_hang_take_no_time_from_others() {
        let patience = Patience::with(follow);
        let all: BTreeSet<PathBuf> = paths("/home", MOST_SLOW - 6)
            .chain(paths("/home/slow", 5))
            .chain(paths("/srv", 20))
            .chain(paths("/usr", 20))
            .collect();
        // On a busy machine any path may be slow: each group has all of its answers in some look-up.
        let mut most = [0; 3];
        for _ in 0..20 {
            let answers = patience.follow_all(all.clone()).by_path;
            assert_eq!(answers.len(), all.len());
            for (most, folder) in most.iter_mut().zip(["/usr", "/srv", "/home"]) {
                *most = answered(&answers, folder).max(*most);
            }
            if most == [20, 20, 5] {
                break;
            }
        }
        assert_eq!(
            most,
            [20, 20, 5],
            "the slow ones get what is left of the time"
        );
        // However many hang, the system's paths are followed, and the caller does not wait for each.
        let more: BTreeSet<PathBuf> = all.into_iter().chain(paths("/home/more", 100)).collect();
        let began = Instant::now();
        let mut look_ups = (0..20).map(|_| patience.follow_all(more.clone()).by_path);
        assert!(look_ups.any(|answers| answered(&answers, "/usr") == 20));
        assert!(began.elapsed() < BUDGET * 100, "not a second for each");
    }

    #[test]
    fn each_path_has_its_turn_when_the_time_is_not_enough_for_all() {
        let mut state = State::default();
        let all: BTreeSet<PathBuf> = paths("/home", 30).chain(paths("/usr", 1)).collect();
        let mut followed = BTreeSet::new();
        for _ in 0..3 {
            let order = state.in_turn(all.clone());
            assert!(order[0].starts_with("/usr"), "{order:?}");
            let (now, later) = order.split_at(11);
            let answers = now
                .iter()
                .map(|path| (path.clone(), (Err(Errno::NOENT), None)));
            let others = later
                .iter()
                .map(|path| (path.clone(), (Err(Errno::AGAIN), None)));
            state.note_turns(&answers.chain(others).collect());
            followed.extend(now.to_vec());
        }
        assert_eq!(followed, all);
    }

    #[test]
    fn trails_are_compared_anew_each_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let gone = folder.path().join("gone");
        let patience = Patience::default();
        let answers = patience.follow_all(BTreeSet::from(["/bin/sh".into(), gone.clone()]));
        let trail = answers.trail.expect("both ways are known");
        // A busy machine may be too slow for the limit.
        let is_same = || patience.is_same(&trail);
        assert!((0..100).any(|_| is_same()));
        std::fs::write(&gone, "").expect("a file");
        assert!(!is_same());
        std::fs::remove_file(&gone).expect("removed");
        assert!((0..100).any(|_| is_same()));
        // With a way that is unknown, nothing is.
        let paths = BTreeSet::from([gone, "/proc".into()]);
        assert!(patience.follow_all(paths).trail.is_none());
    }
}
