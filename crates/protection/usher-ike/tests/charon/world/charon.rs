//! The charon of a host.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use usher_ike::IkeKey;

use super::{Host, wait};

impl Host {
    /// Starts an unmodified charon inside the namespace, with a socket of its own.
    pub fn start_charon(&mut self) {
        assert!(self.charon.is_none(), "one charon a host");
        // A killed charon leaves its socket.
        let _removed = std::fs::remove_file(self.socket());
        let folder = self.folder.path().display().to_string();
        let settings = self.folder.path().join("strongswan.conf");
        let text = format!(
            "charon-systemd {{
               replay_window = 0
               load = random nonce openssl pem pkcs1 pkcs8 pubkey hmac kdf kernel-netlink socket-default vici
               plugins {{ vici {{ socket = unix://{folder}/vici }} }}
               filelog {{ log {{ path = {folder}/log\n default = 1\n flush_line = yes }} }}
             }}\n"
        );
        std::fs::write(&settings, text).expect("the settings");
        let out = std::fs::File::create(self.folder.path().join("out")).expect("a file");
        let mut charon = Command::new("ip");
        charon.args(["netns", "exec", &self.namespace]);
        match &self.strongswan {
            None => charon.arg("/usr/sbin/charon-systemd"),
            // Mounts its plugins over the machine's, in the mount namespace that `ip` makes.
            Some(root) => charon
                .args([
                    "sh",
                    "-c",
                    "mount --bind $0/usr/lib/ipsec /usr/lib/ipsec && \
                     exec $0/usr/lib64/ld-linux-x86-64.so.2 \
                     --library-path $0/usr/lib/x86_64-linux-gnu $0/usr/sbin/charon-systemd",
                ])
                .arg(root)
                .env(
                    "OPENSSL_MODULES",
                    root.join("usr/lib/x86_64-linux-gnu/ossl-modules"),
                ),
        };
        let charon = charon
            .env("STRONGSWAN_CONF", &settings)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .spawn()
            .expect("charon: scripts/setup installs it");
        self.charon = Some(charon);
        wait(&format!("charon of {}", self.name), || {
            std::os::unix::net::UnixStream::connect(self.socket()).is_ok()
        });
    }

    pub fn kill_charon(&mut self) {
        let mut charon = self.charon.take().expect("it runs");
        charon.kill().expect("kill");
        charon.wait().expect("its end");
    }

    /// Stops charon (SIGSTOP), or lets it go on.
    pub fn stop_charon(&self, stopped: bool) {
        let charon = self.charon.as_ref().expect("it runs");
        let id = nix::unistd::Pid::from_raw(i32::try_from(charon.id()).expect("a pid"));
        let signal = if stopped {
            nix::sys::signal::Signal::SIGSTOP
        } else {
            nix::sys::signal::Signal::SIGCONT
        };
        nix::sys::signal::kill(id, signal).expect("kill");
    }

    /// `swanctl --load-all`, with files that have nothing.
    pub fn load_all(&self) {
        self.swanctl(&["--load-all", "--noprompt"]);
    }

    /// Writes files for its charon as an administrator without Usher does: one peer, policies of charon's own, and
    /// no security label.
    pub fn write_swanctl_conf(&self, peer: &Self, algorithms: &str) {
        self.write_swanctl_conf_with(peer, algorithms, [&self.key, &peer.key]);
    }

    /// As [`Self::write_swanctl_conf`], with these keys of both hosts.
    pub fn write_swanctl_conf_with(&self, peer: &Self, algorithms: &str, keys: [&IkeKey; 2]) {
        let files = self.folder.path().join("swanctl");
        let write = |name: &str, bytes: &[u8]| {
            let path = files.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, bytes).expect("a file");
        };
        write("pkcs8/own.der", &keys[0].to_pkcs8());
        write("pubkey/own.der", &keys[0].public().to_spki());
        write("pubkey/peer.der", &keys[1].public().to_spki());
        let (own, name, address) = (&self.name, &peer.name, peer.addresses[0]);
        let text = format!(
            "connections {{ by-hand {{
               version = 2
               remote_addrs = {address}
               proposals = aes256gcm16-prfsha384-x25519
               mobike = no
               local {{ auth = pubkey
                 id = {own}
                 pubkeys = own.der }}
               remote {{ auth = pubkey
                 id = {name}
                 pubkeys = peer.der }}
               children {{ any {{
                 mode = transport
                 esp_proposals = {algorithms}
                 start_action = trap }} }} }} }}\n"
        );
        write("swanctl.conf", text.as_bytes());
    }

    /// Returns whether one of its TCP connections waits for an answer to its SYN.
    pub fn has_connecting(&self) -> bool {
        const SYN_SENT: &str = "02";
        let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
        let table = self.inside(read).join().expect("no panic");
        let table = table.expect("the kernel lists them");
        let states = table.lines().map(|line| line.split_whitespace().nth(3));
        let mut states = states.flatten();
        states.any(|state| state == SYN_SENT)
    }

    /// Ends all IKE SAs, with their SAs on both hosts.
    pub fn terminate(&self) {
        let listed = self.swanctl(&["--list-sas", "--raw"]);
        let names = listed
            .split(['{', ' '])
            .filter(|word| word.starts_with("usher-"));
        let names: BTreeSet<&str> = names.collect();
        assert!(!names.is_empty(), "{listed}");
        for name in names {
            self.swanctl(&["--terminate", "--ike", name]);
        }
    }

    /// The output of an administrator's command for charon, whose own files have nothing.
    pub fn swanctl(&self, arguments: &[&str]) -> String {
        let files = self.folder.path().join("swanctl");
        std::fs::create_dir_all(&files).expect("a folder");
        let output = Command::new("swanctl")
            .args(arguments)
            .arg("--uri")
            .arg(format!("unix://{}", self.socket().display()))
            .env("SWANCTL_DIR", files)
            .output()
            .expect("swanctl");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// charon's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// How many pairs of SAs charon has made at the first address, whoever began.
    pub fn pairs_made(&self) -> usize {
        let (log, address) = (self.log(), format!(" and TS {}/32 ", self.addresses[0]));
        let made = log.lines().filter(|line| line.contains(&address));
        let made = made.filter(|line| line.contains(" established with SPIs "));
        // charon logs a second line about a pair that it has granted.
        made.filter(|line| !line.contains("outbound CHILD_SA"))
            .count()
    }
}
