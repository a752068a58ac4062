//! Measures file transfers by FTP and SFTP, the paper's tables 1 and 2, and the daemons at rest, in a
//! guest that has ESP and whose clock counts instructions:
//!
//!     tests/vm/run --kernel 6.12 --icount -- .../usher-bench-transfers FILES MEGABYTES ROUNDS [ftp | sftp]
//!
//! The programs are Debian's lftp (many files), curl (a large one), vsftpd, sftp and sshd, unchanged.
//! curl would wait a second for each of many files whose data connection the server names at once: it
//! polls no socket then. The same two hosts transfer the same files in these ways:
//!
//!     plain     in the clear
//!     by_hand   IPsec configured by ip-xfrm(8): one SA each way with the algorithm that charon would
//!               choose, and entries of the SPD for the two addresses
//!     policy    Usher's policy of the paper's figure 9, "secure", with charon
//!     other     copies of the programs, in the clear, beside Usher, whose policy does not name them
//!
//! plain and by_hand alternate before Usher starts, because its LSM programs run for the whole kernel;
//! policy and other alternate afterwards. The figures are the processor time of the whole guest (both
//! hosts, Usher's daemons and charon) in instructions. Prints `usher_bench::Figure`s as JSON, and each
//! transfer on standard error.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use usher_bench::busy::{Busy, check_clock, load_ciphers};
use usher_bench::{Figure, vsftpd_settings};
use usher_lab::protected::{World, can_protect, wait_for_listener};
use usher_lab::{Daemon, Host, Running};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The time limit of one transfer, and of filling a folder.
const LIMIT: Duration = Duration::from_secs(1800);

/// The programs of Debian, and copies of them that no policy names.
const DEBIAN: Programs = Programs {
    lftp: "/usr/bin/lftp",
    curl: "/usr/bin/curl",
    vsftpd: "/usr/sbin/vsftpd",
    ftp_port: 21,
    sftp: "/usr/bin/ssh",
    sshd: "/usr/sbin/sshd",
    ssh_port: 22,
};
const COPIES: Programs = Programs {
    lftp: "/run/copies/lftp",
    curl: "/run/copies/curl",
    vsftpd: "/run/copies/vsftpd",
    ftp_port: 2121,
    sftp: "/run/copies/ssh",
    sshd: "/run/copies/sshd",
    ssh_port: 2222,
};

const POLICY: &str = "application lftp, curl, vsftpd, ssh, sshd {
  network 10.77.0.0/24 protected Secure;
  network 0.0.0.0/0 trusted;
  protection Secure { localport=any remoteport=any encryption mandatory; }
}
";

const SSHD: &str = "HostKey /root/key
AuthorizedKeysFile /root/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
";

struct Programs {
    lftp: &'static str,
    curl: &'static str,
    vsftpd: &'static str,
    ftp_port: u16,
    /// The program with sftp's socket.
    sftp: &'static str,
    sshd: &'static str,
    ssh_port: u16,
}

/// How long the hosts are left alone to count what their daemons do at rest. Longer than all their
/// intervals.
const REST: Duration = Duration::from_secs(30);

/// After this time the protector takes a new policy for settled.
const SETTLING: Duration = Duration::from_secs(125);

/// A way to transfer: its name, and the programs.
type Way = (&'static str, &'static Programs);

const BY_HAND: &str = "by_hand";
const BEFORE: [Way; 2] = [("plain", &DEBIAN), (BY_HAND, &DEBIAN)];
const AFTER: [Way; 2] = [("policy", &DEBIAN), ("other", &COPIES)];

/// Which bytes are transferred, and by which protocol.
#[derive(Clone, Copy)]
enum Transfer {
    FtpFiles,
    FtpLarge,
    SftpFiles,
    SftpLarge,
}

const TRANSFERS: [Transfer; 4] = [
    Transfer::FtpFiles,
    Transfer::FtpLarge,
    Transfer::SftpFiles,
    Transfer::SftpLarge,
];

const USAGE: &str = "usage: FILES MEGABYTES ROUNDS [ftp | sftp] | timed COMMAND...";

struct Bench {
    world: World,
    transfers: &'static [Transfer],
    files: usize,
    megabytes: usize,
    rounds: usize,
    figures: Vec<Figure>,
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["timed", command @ ..] => timed(command),
        [files, megabytes, rounds, protocol @ ..] => {
            let transfers = match protocol {
                [] => &TRANSFERS[..],
                ["ftp"] => &TRANSFERS[..2],
                ["sftp"] => &TRANSFERS[2..],
                _ => return Err(USAGE.into()),
            };
            measure(
                files.parse()?,
                megabytes.parse()?,
                rounds.parse()?,
                transfers,
            )
        }
        _ => Err(USAGE.into()),
    }
}

/// Prints the nanoseconds of a command: of the clock, and of the processor.
fn timed(command: &[&str]) -> Outcome {
    let (program, arguments) = command.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null());
    let busy = Busy::begin()?;
    let status = command.status()?;
    let (elapsed, busy) = busy.end()?;
    if !status.success() {
        return Err(format!("{program}: {status}").into());
    }
    println!("{elapsed} {busy}");
    Ok(())
}

fn measure(
    files: usize,
    megabytes: usize,
    rounds: usize,
    transfers: &'static [Transfer],
) -> Outcome {
    if !can_protect() {
        return Err("run it in a guest, by tests/vm/run".into());
    }
    check_clock()?;
    load_ciphers()?;
    let mut bench = Bench {
        world: World::new()?,
        transfers,
        files,
        megabytes,
        rounds,
        figures: Vec::new(),
    };
    bench.fill()?;
    bench.with_servers(&[&DEBIAN], |bench| bench.by_turns(&BEFORE))?;

    bench.rest("plain", &mut [])?;
    let mut daemons = bench.world.start_charons()?;
    bench.rest("charon", &mut daemons)?;
    daemons.extend(bench.world.start_protectors()?);
    bench.world.write_policy("secure", POLICY)?;
    bench.world.apply()?;
    bench.world.wait_for_sas()?;
    bench.with_servers(&[&DEBIAN, &COPIES], |bench| bench.by_turns(&AFTER))?;
    is_protected(&bench.world.server)?;
    std::thread::sleep(SETTLING);
    bench.rest("policy", &mut daemons)?;
    println!("{}", serde_json::to_string(&bench.figures)?);
    Ok(())
}

impl Bench {
    /// Makes the files, keys and settings of both hosts.
    fn fill(&self) -> Outcome {
        let (client, server) = (&self.world.laptop, &self.world.server);
        for host in [client, server] {
            // Otherwise transfers wait for delayed acknowledgements. A wait costs no instructions, but
            // it takes real time.
            let route = "ip route change 10.77.0.0/24 dev eth0 src $0 quickack 1";
            host.run(["sh", "-c", route, &host.ipv4().to_string()])?;
            host.run(["mkdir", "-p", "/run/copies", "/run/empty", "/run/sshd"])?;
            let all = [
                DEBIAN.lftp,
                DEBIAN.curl,
                DEBIAN.vsftpd,
                DEBIAN.sftp,
                DEBIAN.sshd,
            ];
            host.run(["cp"].iter().chain(&all).chain(&["/run/copies"]))?;
        }
        client.run(["sh", "-c", "ssh-keygen -q -t ed25519 -N '' -f /root/key"])?;
        for file in ["/root/key", "/root/key.pub"] {
            server.write(file, client.read(file)?)?;
        }
        server.run(["chmod", "600", "/root/key"])?;
        let mut random = File::open("/dev/urandom")?;
        let mut file = [0; 2048];
        for number in 1..=self.files {
            random.read_exact(&mut file)?;
            server.write(format!("/var/lib/ftp/files/{number}"), file)?;
        }
        let make = "head -c ${0}M /dev/urandom >/var/lib/ftp/large";
        let megabytes = self.megabytes.to_string();
        server
            .command(["sh", "-c", make, &megabytes])
            .limit(LIMIT)
            .succeed()?;
        for programs in [&DEBIAN, &COPIES] {
            let port = programs.ftp_port;
            let files: String = (1..=self.files)
                .map(|file| format!(" files/{file}"))
                .collect();
            let script = format!(
                "set ftp:ssl-allow no\nset ftp:passive-mode on\nopen ftp://{}:{port}\ncat{files} \
                 >/dev/null\n",
                server.ipv4()
            );
            client.write(format!("/root/files-{port}"), script)?;
            let file = format!("/root/vsftpd-{port}.conf");
            server.write(file, vsftpd_settings(port))?;
        }
        server.write("/root/sshd.conf", SSHD)?;
        client.write("/root/files", "get -r /var/lib/ftp/files /root/got\n")?;
        client
            .write("/root/large", "get /var/lib/ftp/large /dev/null\n")
            .map_err(Into::into)
    }

    /// Measures while these servers run.
    fn with_servers(
        &mut self,
        all: &[&Programs],
        measure: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        let server = &self.world.server;
        let mut servers: Vec<Running> = Vec::new();
        for programs in all {
            let settings = format!("/root/vsftpd-{}.conf", programs.ftp_port);
            servers.push(server.spawn([programs.vsftpd, &settings])?);
            let port = programs.ssh_port.to_string();
            let sshd = [programs.sshd, "-D", "-f", "/root/sshd.conf", "-p", &port];
            servers.push(server.spawn(sshd)?);
            for port in [programs.ftp_port, programs.ssh_port] {
                wait_for_listener(server, port)?;
            }
        }
        measure(self)?;
        for server in &mut servers {
            server.end()?;
        }
        Ok(())
    }

    /// Counts the instructions of a second in which no program does anything for a user.
    fn rest(&mut self, name: &str, daemons: &mut [Daemon]) -> Outcome {
        let mut before = Vec::new();
        for daemon in &mut *daemons {
            before.push((
                daemon.name().to_owned(),
                daemon.pid()?,
                work_of(daemon.pid()?)?,
            ));
        }
        let busy = Busy::begin()?;
        std::thread::sleep(REST);
        let (_, busy) = busy.end()?;
        for (daemon, pid, before) in before {
            let work = work_of(pid)?.saturating_sub(before) / REST.as_secs();
            eprintln!("at_rest/{name}: {daemon}: {work} instructions a second");
        }
        let each = busy / REST.as_secs_f64();
        eprintln!("at_rest/{name}: {each:.0} instructions a second in all");
        self.figures.push(Figure {
            name: format!("ipsec/at_rest/{name}"),
            unit: "instructions a second".into(),
            samples: vec![each],
        });
        Ok(())
    }

    /// Makes all transfers in these ways by turns.
    fn by_turns(&mut self, ways: &[Way; 2]) -> Outcome {
        for transfer in self.transfers.iter().copied() {
            let mut samples = [Vec::new(), Vec::new()];
            // The first round warms up.
            for round in 0..=self.rounds {
                for turn in 0..ways.len() {
                    let number = (round + turn) % ways.len();
                    let taken = self.take(transfer, ways[number])?;
                    if round > 0 {
                        samples[number].push(taken);
                    }
                }
            }
            for ((way, _), samples) in ways.iter().zip(samples) {
                self.figures.push(Figure {
                    name: format!("ipsec/{}/{way}", transfer.name()),
                    unit: transfer.unit().into(),
                    samples,
                });
            }
        }
        Ok(())
    }

    /// The instructions of one transfer, a file or a megabyte.
    fn take(&self, transfer: Transfer, (way, programs): Way) -> Outcome<f64> {
        let (client, server) = (&self.world.laptop, &self.world.server);
        if way == BY_HAND {
            configure_by_hand(client, server)?;
        }
        let words = transfer.command(programs, server);
        let helper = ["usher-bench-transfers".to_owned(), "timed".to_owned()];
        let command = client.command(helper.iter().chain(&words));
        let taken = command.limit(LIMIT).succeed()?.stdout;
        if way == BY_HAND {
            is_protected(server)?;
            for host in [client, server] {
                host.run(["sh", "-c", "ip xfrm policy flush && ip xfrm state flush"])?;
            }
        }
        let (elapsed, busy) = taken.trim().split_once(' ').ok_or("no figures")?;
        let (elapsed, busy): (f64, f64) = (elapsed.parse()?, busy.parse()?);
        let amount = match transfer {
            Transfer::FtpFiles | Transfer::SftpFiles => self.files,
            Transfer::FtpLarge | Transfer::SftpLarge => self.megabytes,
        } as f64;
        let (name, unit) = (transfer.name(), transfer.unit());
        eprintln!(
            "{name}/{way}: {:.0} {unit}; {:.0} ns elapsed",
            busy / amount,
            elapsed / amount
        );
        Ok(busy / amount)
    }
}

impl Transfer {
    fn name(self) -> &'static str {
        match self {
            Self::FtpFiles => "ftp_files",
            Self::FtpLarge => "ftp_large",
            Self::SftpFiles => "sftp_files",
            Self::SftpLarge => "sftp_large",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::FtpFiles | Self::SftpFiles => "instructions a file",
            Self::FtpLarge | Self::SftpLarge => "instructions a megabyte",
        }
    }

    fn command(self, programs: &Programs, server: &Host) -> Vec<String> {
        let address = server.ipv4();
        let words = match self {
            Self::FtpFiles => format!("{} -f /root/files-{}", programs.lftp, programs.ftp_port),
            Self::FtpLarge => format!(
                "{} -sS -o /dev/null ftp://{address}:{}/large",
                programs.curl, programs.ftp_port
            ),
            Self::SftpFiles | Self::SftpLarge => {
                let batch = match self {
                    Self::SftpFiles => "/root/files",
                    _ => "/root/large",
                };
                format!(
                    "sftp -q -S {} -P {} -b {batch} -i /root/key -o StrictHostKeyChecking=no \
                     -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR root@{address}",
                    programs.sftp, programs.ssh_port
                )
            }
        };
        words.split_whitespace().map(str::to_owned).collect()
    }
}

/// The nanoseconds that the living threads of a process have run.
fn work_of(pid: u32) -> Outcome<u64> {
    let mut work = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let told = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        work += told.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(work)
}

/// SAs and entries of the SPD as an administrator writes them.
fn configure_by_hand(client: &Host, server: &Host) -> Outcome {
    let key = format!("0x{}", "5a".repeat(36));
    for host in [client, server] {
        let mut lines = String::new();
        for (from, to, spi) in [(client, server, "0x1001"), (server, client, "0x1002")] {
            let way = if from.name() == host.name() {
                "out"
            } else {
                "in"
            };
            let ends = format!("src {} dst {}", from.ipv4(), to.ipv4());
            lines += &format!(
                "state add {ends} proto esp spi {spi} mode transport reqid 1 replay-window 32 \
                 aead rfc4106(gcm(aes)) {key} 128\n\
                 policy add {ends} dir {way} tmpl proto esp mode transport reqid 1\n"
            );
        }
        for line in lines.lines() {
            host.run(["ip", "xfrm"].into_iter().chain(line.split_whitespace()))?;
        }
    }
    Ok(())
}

/// Checks that the last transfer went by ESP; otherwise the figures mean nothing.
fn is_protected(host: &Host) -> Outcome {
    let told = host.run(["ip", "-s", "xfrm", "state"])?.stdout;
    let bytes = told.lines().filter_map(|line| line.split_once("(bytes), "));
    let most = bytes.filter_map(|(bytes, _)| bytes.trim().parse::<u64>().ok());
    if most.max().is_none_or(|most| most < 1 << 14) {
        return Err(format!("not by ESP:\n{told}").into());
    }
    Ok(())
}
