//! The files at the paths of lists. Look-ups run in the background, with one thread per path at
//! most, and one look-up serves all callers.
//!
//! A path may be on another host, which may not answer. A user who may connect can cause any number of
//! look-ups, so neither the number of threads that wait for such a host nor the waiting time of other users
//! may grow with their number.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// The paths of a list.
pub type List = Arc<BTreeSet<String>>;
/// The open files at paths.
pub type Files = HashMap<String, io::Result<OwnedFd>>;

/// The time that looking up paths may take, some of which may be on other hosts.
const LOOK_UP: Duration = Duration::from_secs(3);
/// Limit of paths that are looked up at once; a list has no more.
const AT_ONCE: usize = usher_policy::MAXIMUM_PROGRAMS;
/// Limit of look-ups without an answer: each takes one of the threads that also look up users' names
/// (signer/mod.rs, 4,096).
const UNDER_WAY: usize = 1024;

/// The look-ups of paths.
pub struct Paths {
    open: fn(&str) -> io::Result<OwnedFd>,
    limit: Duration,
    asked: Mutex<Questions>,
    /// The number of the last answered question. The lock is held while files are looked up, and until the
    /// result is in force.
    answered: tokio::sync::Mutex<u64>,
    /// The paths whose look-up has not returned.
    under_way: Arc<Mutex<HashSet<String>>>,
}

/// The lists to look up, and the number of the last question for each.
#[derive(Default)]
struct Questions {
    last: u64,
    lists: HashMap<List, u64>,
}

/// The exclusive right to look paths up.
pub struct LookUpPermit<'a> {
    paths: &'a Paths,
    answered: tokio::sync::MutexGuard<'a, u64>,
}

/// The look-up of a path, until it has returned or turns out not to have begun.
struct UnderWay {
    path: String,
    all: Arc<Mutex<HashSet<String>>>,
}

impl Default for Paths {
    fn default() -> Self {
        Self::new(open_path, LOOK_UP)
    }
}

impl Paths {
    fn new(open: fn(&str) -> io::Result<OwnedFd>, limit: Duration) -> Self {
        Self {
            open,
            limit,
            asked: Mutex::default(),
            answered: tokio::sync::Mutex::default(),
            under_way: Arc::default(),
        }
    }

    /// Waits for the permit to look paths up: at most for two look-ups, however many callers ask.
    pub async fn permit(&self) -> LookUpPermit<'_> {
        LookUpPermit {
            paths: self,
            answered: self.answered.lock().await,
        }
    }

    /// Requests a look-up of a list, and returns the permit to do it: [`LookUpPermit::look_up_asked`].
    /// `None`: another caller has looked the list up since this request, and the result is in force.
    pub async fn ask(&self, list: &List) -> Option<LookUpPermit<'_>> {
        let number = {
            let mut asked = self.asked.lock();
            asked.last += 1;
            let number = asked.last;
            asked.lists.insert(Arc::clone(list), number);
            number
        };
        let permit = self.permit().await;
        (*permit.answered < number).then_some(permit)
    }
}

impl LookUpPermit<'_> {
    /// Looks up the requested lists that are still in force.
    pub async fn look_up_asked(&mut self, in_force: impl Fn(&List) -> bool) -> Files {
        let (last, paths) = {
            let asked = self.paths.asked.lock();
            let lists = asked.lists.keys().filter(|list| in_force(list));
            let paths = lists.flat_map(|list| list.iter().cloned()).collect();
            (asked.last, paths)
        };
        let files = self.look_up(paths).await;
        // Set this only now: a caller that is cancelled during the look-up has answered nothing.
        *self.answered = last;
        let mut asked = self.paths.asked.lock();
        asked.lists.retain(|_, number| *number > last);
        files
    }

    /// Opens the files at paths, not on the reactor's thread. A path that does not answer in time counts
    /// as missing, and is not tried again until it has answered.
    pub async fn look_up(&self, paths: BTreeSet<String>) -> Files {
        let unanswered = |path: &String| (path.clone(), Err(io::ErrorKind::TimedOut.into()));
        let mut files: Files = paths.iter().map(unanswered).collect();
        let deadline = Instant::now() + self.paths.limit;
        let mut paths = paths.into_iter();
        let mut look_ups = JoinSet::new();
        loop {
            while look_ups.len() < AT_ONCE
                && let Some(path) = paths.next()
            {
                let open = self.paths.open;
                if let Some(under_way) = UnderWay::begin(&path, &self.paths.under_way) {
                    look_ups.spawn_blocking(move || {
                        let file = open(&under_way.path);
                        drop(under_way);
                        (file, path)
                    });
                }
            }
            match timeout_at(deadline, look_ups.join_next()).await {
                Ok(Some(Ok((file, path)))) => drop(files.insert(path, file)),
                Ok(Some(Err(error))) => tracing::error!(%error, "cannot look up programs"),
                Ok(None) | Err(_) => return files,
            }
        }
    }
}

impl UnderWay {
    /// `None` while the path's former look-up, or too many other look-ups, have not returned.
    fn begin(path: &str, all: &Arc<Mutex<HashSet<String>>>) -> Option<Self> {
        let mut paths = all.lock();
        let begins = paths.len() < UNDER_WAY && paths.insert(path.to_owned());
        begins.then(|| Self {
            path: path.to_owned(),
            all: Arc::clone(all),
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().remove(&self.path);
    }
}

/// Opens a regular file, without a right to read it.
fn open_path(path: &str) -> io::Result<OwnedFd> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind == FileType::RegularFile {
        Ok(file)
    } else {
        Err(io::Error::other("no file that could be executed"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn list(paths: &[&str]) -> List {
        Arc::new(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    /// A pipe: opening it for reading waits for a writer.
    fn pipe(folder: &Path) -> String {
        let pipe = folder.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        pipe.to_str().unwrap().to_owned()
    }

    fn read(path: &str) -> io::Result<OwnedFd> {
        std::fs::File::open(path).map(OwnedFd::from)
    }

    /// Lets a look-up of the pipe return.
    fn write(pipe: &str) -> std::fs::File {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(pipe).unwrap()
    }

    async fn look_up(paths: Arc<Paths>, wanted: BTreeSet<String>) -> Files {
        paths.permit().await.look_up(wanted).await
    }

    #[tokio::test]
    async fn a_path_that_hangs_counts_as_missing_and_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe(folder.path());
        let mut wanted = BTreeSet::from([pipe.clone()]);
        for number in 0..20 {
            let file = folder.path().join(format!("zfile{number}"));
            std::fs::write(&file, "").unwrap();
            wanted.insert(file.to_str().unwrap().to_owned());
        }
        let paths = Paths::new(read, Duration::from_secs(5));
        let files = paths.permit().await.look_up(wanted.clone()).await;
        let _writer = write(&pipe);
        assert_eq!(files.len(), wanted.len());
        for (path, file) in files {
            let outcome = file.map(drop).map_err(|error| error.kind());
            let answers = path != pipe;
            assert_eq!(outcome.is_ok(), answers, "{path}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_path_has_one_thread_until_it_answers() {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        fn count(path: &str) -> io::Result<OwnedFd> {
            OPENED.fetch_add(usize::from(path.ends_with("pipe")), Ordering::Relaxed);
            read(path)
        }
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe(folder.path());
        let wanted = BTreeSet::from([pipe.clone(), "/proc/self/exe".to_owned()]);
        // Trying it again would wait for as long.
        let paths = Arc::new(Paths::new(count, LONG));
        let waiting = tokio::spawn(look_up(Arc::clone(&paths), wanted.clone()));
        while OPENED.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        waiting.abort();
        for _ in 0..100 {
            let files = look_up(Arc::clone(&paths), wanted.clone()).await;
            assert!(files[&pipe].is_err());
            assert!(files["/proc/self/exe"].is_ok());
        }
        assert_eq!(OPENED.load(Ordering::Relaxed), 1);
        let _writer = write(&pipe);
        while !paths.under_way.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(look_up(paths, wanted).await[&pipe].is_ok());
    }

    #[tokio::test]
    async fn paths_that_hang_leave_threads_for_other_paths() {
        let paths = Paths::new(open_path, LONG);
        let wanted = BTreeSet::from(["/proc/self/exe".to_owned()]);
        let hang = |number: usize| UnderWay::begin(&format!("/{number}"), &paths.under_way);
        let mut hanging: Vec<_> = (0..UNDER_WAY).map(hang).collect();
        let files = paths.permit().await.look_up(wanted.clone()).await;
        assert!(files["/proc/self/exe"].is_err());
        hanging.pop();
        let files = paths.permit().await.look_up(wanted).await;
        assert!(files["/proc/self/exe"].is_ok());
    }

    /// Requests a list, and looks it up if it has the permit; returns the number of paths.
    async fn ask(paths: Arc<Paths>, list: List) -> Option<usize> {
        let mut permit = paths.ask(&list).await?;
        Some(permit.look_up_asked(|_| true).await.len())
    }

    /// Lets tasks run as far as they can.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn callers_that_wait_for_a_look_up_share_the_next_one() {
        let paths = Arc::new(Paths::new(open_path, LONG));
        let permit = paths.permit().await;
        let mut asking = JoinSet::new();
        let lists = [list(&["/usr"]), list(&["/etc", "/proc/self/exe"])];
        for list in lists.iter().cycle().take(300) {
            asking.spawn(ask(Arc::clone(&paths), Arc::clone(list)));
        }
        settle().await;
        assert!(asking.try_join_next().is_none());
        drop(permit);
        let looked_up: Vec<usize> = asking.join_all().await.into_iter().flatten().collect();
        assert_eq!(looked_up, [3]);
        // A later question finds a file that has appeared at a path.
        let [_, second] = lists;
        assert_eq!(ask(Arc::clone(&paths), second).await, Some(2));
    }

    #[tokio::test]
    async fn a_look_up_answers_only_callers_from_before_it_began() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = pipe(folder.path());
        let paths = Arc::new(Paths::new(read, LONG));
        let list = list(&[&pipe]);
        let first = tokio::spawn(ask(Arc::clone(&paths), Arc::clone(&list)));
        while paths.under_way.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let second = tokio::spawn(ask(Arc::clone(&paths), Arc::clone(&list)));
        let third = tokio::spawn(ask(Arc::clone(&paths), Arc::clone(&list)));
        settle().await;
        let _writer = write(&pipe);
        assert_eq!(first.await.unwrap(), Some(1));
        assert_eq!(second.await.unwrap(), Some(1));
        assert_eq!(third.await.unwrap(), None);

        let given_up = paths.ask(&list).await;
        let next = tokio::spawn(ask(Arc::clone(&paths), list));
        settle().await;
        drop(given_up);
        assert_eq!(next.await.unwrap(), Some(1));
    }

    #[tokio::test]
    async fn a_policy_waits_for_two_look_ups_at_the_most_however_many_ask() {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        fn count(_: &str) -> io::Result<OwnedFd> {
            OPENED.fetch_add(1, Ordering::Relaxed);
            Err(io::ErrorKind::NotFound.into())
        }
        let paths = Arc::new(Paths::new(count, LONG));
        let list = list(&["/usr"]);
        let permit = paths.ask(&list).await.unwrap();
        let mut asking = JoinSet::new();
        for _ in 0..300 {
            asking.spawn(ask(Arc::clone(&paths), Arc::clone(&list)));
        }
        settle().await;
        let policy = tokio::spawn({
            let paths = Arc::clone(&paths);
            async move {
                let _permit = paths.permit().await;
                OPENED.load(Ordering::Relaxed)
            }
        });
        settle().await;
        drop(permit);
        assert_eq!(policy.await.unwrap(), 1);
        asking.join_all().await;
    }

    #[tokio::test]
    async fn a_list_of_a_former_policy_is_not_looked_up() {
        let paths = Paths::default();
        let (former, now) = (list(&["/etc"]), list(&["/usr"]));
        let mut permit = paths.ask(&former).await.unwrap();
        assert!(permit.look_up_asked(|list| *list == now).await.is_empty());
        drop(permit);
        let mut permit = paths.ask(&now).await.unwrap();
        assert_eq!(permit.look_up_asked(|list| *list == now).await.len(), 1);
    }

    #[tokio::test]
    async fn what_stands_at_a_path_is_a_file_or_nothing() {
        let wanted = ["/", "/dev/null", "/no/such/file", "/proc/self/exe"];
        let paths = Paths::default();
        let permit = paths.permit().await;
        let files = permit.look_up(wanted.map(str::to_owned).into()).await;
        let found = wanted.map(|path| files[path].is_ok());
        assert_eq!(found, [false, false, false, true]);
    }
}
