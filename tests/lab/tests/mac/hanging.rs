//! File systems that do not answer: an administrator's own, and a user's (FUSE) on the way to another one.

use usher_lab::{Host, PATIENCE, Running, eventually};

use super::specification::gets;
use super::{Outcome, POLICY, answer};

/// Serves a FUSE file system that answers nothing but its first request: mount point, user.
const SERVER: &str = r#"
import ctypes, os, struct, sys
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40755,user_id={sys.argv[2]},group_id={sys.argv[2]},allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hanging", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
while True:
    request = os.read(fuse, 1 << 18)
    operation, number = struct.unpack_from("=IQ", request, 4)
    if operation == 26:
        os.write(fuse, struct.pack("=IiQ6I2H2I", 80, 0, number, 7, 31, 0, 0, 0, 0, 0, 0, 1 << 16, 1) + bytes(28))
        print("answers no more", flush=True)
"#;

fn serve(host: &Host, at: &str, user: &str) -> Result<Running, Box<dyn std::error::Error>> {
    let mut server = host.spawn(["/usr/bin/python3", "-I", "-S", "-c", SERVER, at, user])?;
    server.read_past("answers no more", PATIENCE)?;
    Ok(server)
}

/// Waits until the labeller says this of both file systems, or of neither.
fn wait(host: &Host, is_said: bool) -> Outcome {
    let texts = [
        "/srv/hanging does not answer",
        "multilabel /srv/alice/data: a file system on the way does not answer",
    ];
    eventually("the labeller has seen what hangs", || {
        let status = answer(host, &["status"])?.to_string();
        Ok(texts.iter().all(|text| status.contains(text) == is_said))
    })
}

/// Shows it on a host where files below /srv/labelled have labels by `mls` and `te`.
// Threat model: M103, M121
pub fn file_systems_that_hang_delay_no_others(host: &Host, te: &str) -> Outcome {
    let policy = |more: &str| {
        let named = "multilabel \"/srv/labelled\", \"/srv/alice/data\"";
        format!("mac framework {{ {named}{more}; }}\n{te}\n")
    };
    let folders = "cd /srv && mkdir -p alice/data hanging data && chown alice alice && \
                   mount -t tmpfs -o mode=755 none alice/data && mount --bind alice/data data && \
                   setfmac te/plain,mls/low data";
    host.run(["sh", "-c", folders])?;
    host.write(POLICY, policy(""))?;
    host.run(["usher", "policy", "apply"])?;

    // Alice's own lies over the way to the one that is mounted in her folder.
    let mut servers = Vec::new();
    for (at, user) in [("/srv/alice", "2001"), ("/srv/hanging", "0")] {
        servers.push(serve(host, at, user)?);
    }
    host.write(POLICY, policy(", \"/srv/hanging\""))?;
    host.run(["usher", "policy", "apply"])?;
    wait(host, true)?;
    for folder in ["labelled", "data"] {
        let file = format!("/srv/{folder}/beside");
        let make = format!("echo text > {file}");
        host.run(["setpmac", "mls/low", "sh", "-c", &make])?;
        gets(host, &file, "mls/low,te/plain")?;
    }

    for (server, at) in servers.iter_mut().zip(["/srv/alice", "/srv/hanging"]) {
        server.end()?;
        host.run(["umount", "-l", at])?;
    }
    wait(host, false)
}
