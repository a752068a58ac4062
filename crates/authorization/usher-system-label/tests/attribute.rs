//! Labels on real files. The tests run as root, on every file system of this machine that keeps labels:
//! that of the temporary directory, and a tmpfs.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{Mode, OFlags, XattrFlags, lsetxattr};
use rustix::io::Errno;
use usher_label::Label;
use usher_system_label::file::{ATTRIBUTE, Change, FileLabelError, LabelledFile};

fn label(text: &str) -> Label {
    text.parse().unwrap()
}

/// Directories on the file systems.
fn folders() -> Vec<tempfile::TempDir> {
    let on = |parent: &Path| tempfile::tempdir_in(parent).unwrap();
    vec![on(&std::env::temp_dir()), on(Path::new("/dev/shm"))]
}

#[test]
fn a_label_is_set_merged_and_read() {
    for folder in folders() {
        let path = folder.path().join("file");
        File::create(&path).unwrap();
        let file = LabelledFile::Path(&path);
        assert_eq!(file.label(), Ok(None));
        assert_eq!(file.set(&label("mls/low,biba/high")), Ok(Change::First));
        let before = label("biba/high,mls/low");
        assert_eq!(file.label(), Ok(Some(before.clone())));
        assert_eq!(file.set(&label("mls/low")), Ok(Change::Unchanged));
        assert_eq!(file.set(&label("mls/high")), Ok(Change::Changed(before)));
        assert_eq!(file.label(), Ok(Some(label("biba/high,mls/high"))));
        let stored = rustix::fs::getxattr(&path, ATTRIBUTE, &mut [0; 64][..]);
        assert_eq!(stored, Ok("biba/high,mls/high".len()));
    }
}

#[test]
fn a_link_has_a_label_of_its_own() {
    for folder in folders() {
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        let open = File::create(&path).unwrap();
        symlink("file", &link).unwrap();
        LabelledFile::Link(&link).set(&label("biba/low")).unwrap();
        LabelledFile::Path(&link).set(&label("biba/high")).unwrap();
        let of = |file: LabelledFile<'_>| file.label().unwrap().unwrap().to_string();
        assert_eq!(of(LabelledFile::Link(&link)), "biba/low");
        assert_eq!(of(LabelledFile::Path(&path)), "biba/high");
        assert_eq!(of(LabelledFile::Open(open.as_fd())), "biba/high");

        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(&link, flags, Mode::empty()).unwrap();
        let handle = LabelledFile::Handle(handle.as_fd());
        assert_eq!(of(handle), "biba/low");
        handle.set(&label("mls/low")).unwrap();
        assert_eq!(of(LabelledFile::Link(&link)), "biba/low,mls/low");
        assert_eq!(of(LabelledFile::Path(&path)), "biba/high");
    }
}

#[test]
fn a_value_that_its_module_does_not_take_is_refused() {
    for folder in folders() {
        let path = folder.path().join("file");
        File::create(&path).unwrap();
        let file = LabelledFile::Path(&path);
        for refused in [
            file.set(&label("biba/65536")),
            file.replace(&label("mls/low,biba/65536")),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.errno(), Errno::INVAL);
            let told = error.to_string();
            assert!(
                told.starts_with("the label `biba/65536`: `65536` is not a grade"),
                "{told}"
            );
        }
        assert_eq!(file.label(), Ok(None));
        assert_eq!(file.set(&label("biba/65535,own/65536")), Ok(Change::First));
    }
}

#[test]
fn a_dangling_link_is_labelled_and_not_followed() {
    for folder in folders() {
        let link = folder.path().join("link");
        symlink("nowhere", &link).unwrap();
        let change = LabelledFile::Link(&link).set(&label("biba/low"));
        assert_eq!(change, Ok(Change::First));
        let error = LabelledFile::Path(&link).set(&label("biba/low"));
        assert_eq!(error, Err(FileLabelError::Kernel(Errno::NOENT)));
    }
}

// Threat model: M111
#[test]
fn a_foreign_attribute_is_an_error_until_it_is_replaced() {
    for folder in folders() {
        let path = folder.path().join("file");
        File::create(&path).unwrap();
        let file = LabelledFile::Path(&path);
        for bytes in [
            &b""[..],
            b"high",
            b"biba/high\0",
            b"\xff",
            &[b'a'; 2000][..],
        ] {
            let none = XattrFlags::empty();
            lsetxattr(&path, ATTRIBUTE, bytes, none).unwrap();
            let read = file.label().unwrap_err();
            assert_eq!(read.errno(), Errno::BADMSG, "{bytes:?}");
            assert_eq!(file.set(&label("mls/low")), Err(read));
            assert_eq!(file.replace(&label("mls/low")), Ok(Change::First));
            assert_eq!(file.label(), Ok(Some(label("mls/low"))));
        }
    }
}

#[test]
fn an_object_that_keeps_no_labels_says_so() {
    let process = LabelledFile::Path(Path::new("/proc/self/status"));
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let socket = LabelledFile::Open(socket.as_fd());
    let pipe = LabelledFile::Open(pipe.as_fd());
    for file in [process, socket, pipe] {
        assert_eq!(file.label(), Err(FileLabelError::NotSupported));
        let set = file.set(&label("biba/low"));
        assert_eq!(set, Err(FileLabelError::NotSupported));
    }
}

#[test]
fn a_label_that_would_become_too_large_changes_nothing() {
    for folder in folders() {
        let path = folder.path().join("file");
        File::create(&path).unwrap();
        let file = LabelledFile::Path(&path);
        let eight = label("a/x,b/x,c/x,d/x,e/x,f/x,g/x,h/x");
        file.set(&eight).unwrap();
        let error = file.set(&label("i/x")).unwrap_err();
        assert_eq!(error.errno(), Errno::NOSPC);
        assert_eq!(file.label(), Ok(Some(eight)));
        assert_eq!(file.replace(&Label::default()), Err(FileLabelError::Empty));
        assert_eq!(file.set(&Label::default()), Err(FileLabelError::Empty));
    }
}
