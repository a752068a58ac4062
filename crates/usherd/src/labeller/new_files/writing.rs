//! Writes the labels of new files into their attributes, on one file system.
//!
//! The kernel side knows the label of a new file at once, in its own memory. It cannot write the attribute,
//! and refuses access to a file of a *multilabel* file system if it knows no label. So the labeller watches
//! new files, asks the kernel for each one's label, and writes it where the file has no attribute yet. It
//! looks at all files when it begins, on request, and when the kernel's bounded queue has lost events.
//!
//! If the labeller dies before it has written the attribute, the next one finds the file as long as the
//! kernel remembers it. Otherwise the file stays without a label, and access to it is refused until an
//! administrator sets one; setfsmac(8) finds such files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use usher_label::Label;
use usher_system::new_files::{NewFile, NewFiles};
use usher_system_label::file::{Change, FileLabelError, LabelledFile};

use super::walk::{Step, Walk};
use crate::labeller::filing::Filing;
use crate::labeller::tree::Tree;

/// Limit of the events, and of the files of a walk, that one turn handles.
const TURN: usize = 256;

/// How long to wait after a failure before all files are looked at again: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Asks the kernel for the label of an open file. `None`: the kernel knows none.
pub(super) type LabelOf<'l> = &'l dyn Fn(BorrowedFd<'_>) -> io::Result<Option<Label>>;

/// Writes the labels of new files of one file system.
pub(super) struct LabelWriter {
    new_files: NewFiles,
    /// The events could not be read. They are not read again until all files are looked at again.
    is_deaf: bool,
    root: OwnedFd,
    tree: Tree,
    /// The specification of the policy.
    filing: Option<Arc<Filing>>,
    walk: Option<Walk>,
    /// Whether another walk follows the present one. The present walk goes on: otherwise a process that makes
    /// files all the time could keep every walk from reaching the last file.
    walks_again: bool,
    /// When all files are looked at again because something failed, and how long that is put off after the
    /// next failure.
    retry: Option<Instant>,
    wait: Duration,
    counts: Counts,
}

/// The counts since the file system is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::labeller) struct Counts {
    /// Attributes that were written.
    pub(in crate::labeller) persisted: u64,
    /// Files without an attribute whose label the kernel does not know, at the last walk and since.
    pub(in crate::labeller) unlabelled: u64,
    /// Directories that the last walk left alone, because they lie too deep. No later walk would do more.
    pub(in crate::labeller) too_deep: u64,
    /// Attributes that could not be written, and files that could not be opened.
    pub(in crate::labeller) failed: u64,
    /// How often events were lost, and all files looked at again.
    pub(in crate::labeller) overflows: u64,
    /// The reason of the last failure.
    pub(in crate::labeller) failure: Option<String>,
    /// How long the last walk over all files took.
    pub(in crate::labeller) walked: Duration,
}

impl LabelWriter {
    /// Watches the file system of an open directory, and looks at all of its files first.
    ///
    /// # Errors
    /// The file system cannot be watched. An overlay never can; its upper file system can.
    pub(super) fn watch(root: OwnedFd) -> io::Result<Self> {
        let mut persister = Self {
            new_files: NewFiles::watch(root.try_clone()?)?,
            is_deaf: false,
            tree: Tree::new(root.try_clone()?)?,
            root,
            filing: None,
            walk: None,
            walks_again: true,
            retry: None,
            wait: FIRST_WAIT,
            counts: Counts::default(),
        };
        // Begin the walk after the watch, so that each new file is found by the walk or by an event.
        persister.begin_walk();
        Ok(persister)
    }

    /// Replaces the specification. If it differs, all files are looked at again.
    pub(super) fn specify(&mut self, filing: Option<Arc<Filing>>) {
        let is_known = match (&self.filing, &filing) {
            (Some(known), Some(filing)) => Arc::ptr_eq(known, filing),
            (known, filing) => known.is_none() && filing.is_none(),
        };
        self.walks_again |= !is_known && filing.is_some();
        self.filing = filing;
    }

    /// Does some of the work that waits. Returns true if more can be done at once.
    pub(super) fn turn(&mut self, label_of: LabelOf<'_>) -> bool {
        if self.retry.is_some_and(|retry| retry <= Instant::now()) {
            self.retry = None;
            self.walks_again = true;
            self.watch_again();
        }
        let more = self.take_all(label_of, NewFiles::take);
        for _ in 0..TURN {
            if self.walk.is_none() && self.walks_again {
                self.begin_walk();
            }
            match self.walk.as_mut().map(Walk::next) {
                None => return more,
                Some(None) => self.end_walk(),
                Some(Some(Step::File(file))) => self.persist(&file, label_of),
                Some(Some(Step::TooDeep(directory))) => {
                    self.persist(&directory, label_of);
                    self.counts.too_deep += 1;
                }
                Some(Some(Step::Unreachable(error))) => self.failed(&error),
            }
        }
        true
    }

    /// Takes events, at most those of a turn. Returns true if more may wait. After a failure to read them, no
    /// event is taken before the next attempt: the failure would repeat at once, for ever.
    fn take_all(
        &mut self,
        label_of: LabelOf<'_>,
        mut take: impl FnMut(&mut NewFiles) -> io::Result<Option<NewFile>>,
    ) -> bool {
        for _ in 0..TURN {
            if self.is_deaf {
                return false;
            }
            match take(&mut self.new_files) {
                Ok(None) => return false,
                Ok(Some(NewFile::Named(file))) => self.persist(&file, label_of),
                Ok(Some(NewFile::Gone)) => {}
                Ok(Some(NewFile::Unreachable(error))) => self.failed(&error),
                Ok(Some(NewFile::Lost)) => {
                    self.counts.overflows += 1;
                    self.walks_again = true;
                }
                Err(error) => {
                    self.is_deaf = true;
                    self.failed(&error);
                }
            }
        }
        true
    }

    /// Watches new files anew if their events could not be read. The walk that follows finds the files that
    /// were missed.
    fn watch_again(&mut self) {
        if !self.is_deaf {
            return;
        }
        match self.root.try_clone().and_then(NewFiles::watch) {
            Ok(new_files) => {
                self.new_files = new_files;
                self.is_deaf = false;
            }
            Err(error) => self.failed(&error),
        }
    }

    /// A descriptor that is readable when new files wait. `None` while their events cannot be read.
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_deaf).then(|| self.new_files.as_fd())
    }

    /// Has another walk over all files follow.
    pub(super) fn look_again(&mut self) {
        self.walks_again = true;
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// True while all files are looked at.
    pub(super) fn is_walking(&self) -> bool {
        self.walk.is_some()
    }

    /// When to do a turn even if no new file comes.
    pub(super) fn retry(&self) -> Option<Instant> {
        self.retry
    }

    fn begin_walk(&mut self) {
        self.counts.unlabelled = 0;
        self.counts.too_deep = 0;
        self.walks_again = false;
        match Walk::begin(&self.root) {
            Ok(walk) => self.walk = Some(walk),
            Err(error) => self.failed(&error),
        }
    }

    fn end_walk(&mut self) {
        let walk = self.walk.take();
        self.counts.walked = walk.map_or(Duration::ZERO, |walk| walk.age());
        if self.retry.is_none() {
            self.wait = FIRST_WAIT;
        }
    }

    fn persist(&mut self, file: &OwnedFd, label_of: LabelOf<'_>) {
        let attribute = LabelledFile::Handle(file.as_fd());
        let has_attribute = match attribute.has_attribute() {
            Ok(true) => true,
            Ok(false) => match label_of(file.as_fd()) {
                Ok(Some(label)) => {
                    let set = attribute.set_first(&label);
                    self.note(set);
                    true
                }
                Ok(None) => false,
                Err(error) => return self.failed(&error),
            },
            Err(error) => return self.note(Err(error)),
        };
        let is_filed = self.file(file, attribute);
        if !has_attribute && !is_filed {
            self.counts.unlabelled += 1;
        }
    }

    /// Gives a file the elements that it lacks by the specification. Returns whether it has a label then.
    fn file(&mut self, file: &OwnedFd, attribute: LabelledFile<'_>) -> bool {
        let Some(filing) = self.filing.clone() else {
            return false;
        };
        let has = match attribute.label() {
            Ok(has) => has,
            // An attribute that is no label stays for an administrator to see.
            Err(FileLabelError::Malformed(_)) => return false,
            Err(error) => {
                self.note(Err(error));
                return false;
            }
        };
        match filing.missing(&self.tree, file.as_fd(), has.as_ref()) {
            Ok(None) => has.is_some(),
            Ok(Some(missing)) => {
                let set = attribute
                    .set(&missing)
                    .map(|change| change != Change::Unchanged);
                let is_set = set.is_ok();
                self.note(set);
                is_set
            }
            // The file is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => has.is_some(),
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Notes whether an attribute was written.
    fn note(&mut self, persisted: Result<bool, FileLabelError>) {
        match persisted {
            Ok(true) => self.counts.persisted += 1,
            // Another process has labelled the file since, or the file is gone.
            Ok(false) | Err(FileLabelError::Kernel(rustix::io::Errno::NOENT)) => {}
            Err(error) => self.failed(&error),
        }
    }

    /// Notes a failure. The label is still in the kernel's memory, so all files are looked at again later: the
    /// disk may have been full.
    fn failed(&mut self, error: &dyn std::error::Error) {
        self.counts.failed += 1;
        self.counts.failure = Some(error.to_string());
        if self.retry.is_none() {
            self.retry = Some(Instant::now() + self.wait);
            self.wait = LONGEST_WAIT.min(self.wait * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::{OpenOptionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};

    use parking_lot::{Mutex, MutexGuard};
    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, mknodat, removexattr};
    use usher_system_label::file::ATTRIBUTE;

    use super::*;

    /// Each scene watches the whole file system, so only one scene exists at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A folder on a tmpfs that other processes use, too. Labels are known only of the folder's files.
    struct Scene {
        persister: LabelWriter,
        folder: tempfile::TempDir,
        // The last one to go.
        _alone: MutexGuard<'static, ()>,
    }

    impl Scene {
        fn new(prepare: impl FnOnce(&Path)) -> Self {
            let alone = ALONE.lock();
            let folder = tempfile::tempdir_in("/dev/shm").unwrap();
            prepare(folder.path());
            let root = File::open("/dev/shm").unwrap();
            let persister = LabelWriter::watch(root.into()).unwrap();
            Self {
                persister,
                folder,
                _alone: alone,
            }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Does all turns. Labels are known of files whose names do not begin with `unknown`.
        fn work(&mut self) {
            let folder = self.folder.path().to_owned();
            let label_of = |file: BorrowedFd<'_>| {
                let file = std::os::fd::AsRawFd::as_raw_fd(&file);
                let path = fs::read_link(format!("/proc/self/fd/{file}"))?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let is_known = path.starts_with(&folder) && !name.starts_with("unknown");
                Ok(is_known.then(|| "biba/low".parse().unwrap()))
            };
            while self.persister.turn(&label_of) {}
        }

        fn label(&self, name: &str) -> Option<String> {
            let path = self.path(name);
            let label = LabelledFile::Link(&path).label().unwrap();
            label.map(|label| label.to_string())
        }
    }

    #[test]
    fn each_kind_of_new_file_gets_its_label() {
        let mut scene = Scene::new(|_| {});
        scene.work();
        fs::write(scene.path("file"), "").unwrap();
        fs::create_dir(scene.path("directory")).unwrap();
        fs::write(scene.path("directory/inner"), "").unwrap();
        symlink("file", scene.path("link")).unwrap();
        mknodat(CWD, scene.path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = UnixListener::bind(scene.path("socket")).unwrap();
        let unreadable = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o000)
            .open(scene.path("unreadable"));
        drop(unreadable.unwrap());
        let unnamed = OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::TMPFILE.bits().cast_signed())
            .open(scene.folder.path())
            .unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&unnamed);
        let by_number = format!("/proc/self/fd/{descriptor}");
        linkat(
            CWD,
            &by_number,
            CWD,
            scene.path("named"),
            AtFlags::SYMLINK_FOLLOW,
        )
        .unwrap();
        fs::write(scene.path("gone"), "").unwrap();
        fs::remove_file(scene.path("gone")).unwrap();
        scene.work();
        for name in [
            "file",
            "directory",
            "directory/inner",
            "link",
            "pipe",
            "socket",
            "unreadable",
            "named",
        ] {
            assert_eq!(scene.label(name).as_deref(), Some("biba/low"), "{name}");
        }
        assert_eq!(scene.persister.counts().failure, None);
    }

    // Threat model: M115
    #[test]
    fn files_that_were_there_get_the_labels_that_are_known() {
        let mut scene = Scene::new(|folder| {
            fs::create_dir(folder.join("directory")).unwrap();
            fs::write(folder.join("directory/file"), "").unwrap();
            fs::write(folder.join("unknown"), "").unwrap();
        });
        scene.work();
        assert_eq!(scene.label("directory/file").as_deref(), Some("biba/low"));
        assert_eq!(scene.label("unknown"), None);
        assert!(scene.persister.counts().unlabelled >= 1);
    }

    // Threat model: M115
    #[test]
    fn a_label_that_is_there_is_left_alone() {
        let mut scene = Scene::new(|folder| {
            for (name, text) in [("labelled", "biba/high"), ("malformed", "no label")] {
                let path = folder.join(name);
                fs::write(&path, "").unwrap();
                let flags = rustix::fs::XattrFlags::CREATE;
                let attribute = usher_system_label::file::ATTRIBUTE;
                rustix::fs::setxattr(&path, attribute, text.as_bytes(), flags).unwrap();
            }
        });
        scene.work();
        assert_eq!(scene.label("labelled").as_deref(), Some("biba/high"));
        let path = scene.path("malformed");
        let read = LabelledFile::Path(&path).label();
        assert!(matches!(read, Err(FileLabelError::Malformed(_))));
    }

    // Threat model: M116
    #[test]
    fn lost_events_do_not_end_a_walk_under_way() {
        let mut scene = Scene::new(|folder| {
            for name in 0..3 * TURN {
                fs::write(folder.join(format!("unknown{name}")), "").unwrap();
            }
        });
        let nothing = |_: BorrowedFd<'_>| Ok(None);
        scene.persister.turn(&nothing);
        let seen = scene.persister.counts().unlabelled;
        assert!(scene.persister.is_walking());
        scene.persister.walks_again = true;
        scene.persister.turn(&nothing);
        assert!(scene.persister.counts().unlabelled > seen, "it goes on");
        fs::write(scene.path("file"), "").unwrap();
        scene.work();
        assert!(!scene.persister.is_walking() && !scene.persister.walks_again);
        assert_eq!(scene.label("file").as_deref(), Some("biba/low"));
    }

    // Threat model: M115
    #[test]
    fn a_label_that_could_not_be_written_is_tried_again() {
        let mut scene = Scene::new(|_| {});
        scene.work();
        fs::write(scene.path("file"), "").unwrap();
        let fails = |_: BorrowedFd<'_>| Err(io::ErrorKind::Other.into());
        scene.persister.turn(&fails);
        assert_eq!(scene.label("file"), None);
        assert!(scene.persister.counts().failed > 0);
        scene.work();
        assert_eq!(scene.label("file"), None, "not before its time");
        assert!(scene.persister.retry().unwrap() > Instant::now());
        scene.persister.retry = Some(Instant::now());
        scene.work();
        assert_eq!(scene.label("file").as_deref(), Some("biba/low"));
        assert_eq!(scene.persister.retry(), None);
    }

    // Threat model: M97
    #[test]
    fn all_files_are_looked_at_again_when_asked_for() {
        let mut scene = Scene::new(|_| {});
        fs::write(scene.path("file"), "").unwrap();
        scene.work();
        removexattr(scene.path("file"), ATTRIBUTE).unwrap();
        scene.work();
        assert_eq!(scene.label("file"), None);
        scene.persister.look_again();
        scene.work();
        assert_eq!(scene.label("file").as_deref(), Some("biba/low"));
    }

    #[test]
    fn events_that_cannot_be_read_are_not_asked_for_at_once_again() {
        let mut scene = Scene::new(|_| {});
        scene.work();
        let (mut asked, nothing) = (0, |_: BorrowedFd<'_>| Ok(None));
        let mut fails = |_: &mut NewFiles| {
            asked += 1;
            Err(io::ErrorKind::Other.into())
        };
        assert!(!scene.persister.take_all(&nothing, &mut fails));
        assert!(!scene.persister.take_all(&nothing, &mut fails));
        assert_eq!(asked, 1);
        assert!(scene.persister.events().is_none());
        fs::write(scene.path("file"), "").unwrap();
        scene.work();
        assert_eq!(scene.label("file"), None, "not before its time");
        scene.persister.retry = Some(Instant::now());
        scene.work();
        assert_eq!(scene.label("file").as_deref(), Some("biba/low"));
        assert!(scene.persister.events().is_some());
        fs::write(scene.path("next"), "").unwrap();
        scene.work();
        assert_eq!(scene.label("next").as_deref(), Some("biba/low"));
    }

    #[test]
    fn a_directory_that_lies_too_deep_is_no_reason_to_look_again() {
        let mut scene = Scene::new(|folder| {
            let deep = vec!["d"; crate::labeller::new_files::walk::DEEPEST + 1].join("/");
            fs::create_dir_all(folder.join(deep)).unwrap();
        });
        scene.work();
        assert_eq!(scene.persister.retry(), None);
        assert!(scene.persister.counts().too_deep > 0);
        assert_eq!(scene.persister.counts().failure, None);
    }

    // Threat model: M116
    #[test]
    fn a_full_queue_makes_all_files_be_looked_at() {
        let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap();
        let count = limit.trim().parse::<usize>().unwrap() + 100;
        let mut scene = Scene::new(|_| {});
        scene.work();
        let names: BTreeSet<_> = (0..count).map(|number| format!("{number}")).collect();
        for name in &names {
            fs::write(scene.path(name), "").unwrap();
        }
        scene.work();
        assert_eq!(scene.persister.counts().overflows, 1);
        let unlabelled = names.iter().filter(|name| scene.label(name).is_none());
        assert_eq!(unlabelled.count(), 0);
    }
}
