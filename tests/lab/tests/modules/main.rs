//! Policy modules from files.
#![forbid(unsafe_code)]

mod document;
mod reload;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use usher_lab::{Host, Lab, Role, eventually};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The folder of modules.
const MODULES: &str = "/usr/local/lib/usher/mac";
/// The labeller's list of modules, and its trials.
const LIST: &str = "/var/lib/usher/labeller/modules.json";
const TRIALS: &str = "/var/lib/usher/labeller/trials.json";
/// The folder in which modules are written.
const WORK: &str = "/run/lab/work";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A host with a folder of modules of its own, an account and an empty policy in force.
fn host(lab: &Lab) -> Result<Host, Box<dyn std::error::Error>> {
    let host = lab.host("server")?;
    // Over the machine's, which stays as it is.
    let (upper, work) = ("/run/lab/local", "/run/lab/overlay");
    host.run(["mkdir", "-p", upper, work, WORK])?;
    let folders = format!("lowerdir=/usr/local,upperdir={upper},workdir={work}");
    host.run([
        "mount",
        "-t",
        "overlay",
        "overlay",
        "-o",
        &folders,
        "/usr/local",
    ])?;
    host.run(["chmod", "go-w", "/usr/local", "/usr/local/lib"])?;
    host.add_account("alice", 2001)?;
    host.init_alone()?;
    Ok(host)
}

fn commands(host: &Host, folder: &Path, text: &str) -> Result<String, Box<dyn std::error::Error>> {
    let script = format!("cd '{}'\n{text}", folder.display());
    let environment = host.command(["sh", "-euc", &script]);
    // Not the settings of the make that runs the tests.
    let run = environment.environment("MAKEFLAGS", "").succeed()?;
    Ok(run.stdout)
}

/// Compiles a module as the document does, and installs it.
fn install(host: &Host, name: &str, text: &str) -> Outcome {
    let source = format!("#include <usher_mac_policy.h>\n{text}");
    host.write(format!("{WORK}/{name}.bpf.c"), source)?;
    let script = format!(
        "clang -O2 -g -Wall -target bpf -mcpu=v3 $(pkg-config --cflags usher-module) -c {name}.bpf.c\n\
         install -D -m 644 -t {MODULES} {name}.bpf.o\n"
    );
    commands(host, Path::new(WORK), &script)?;
    Ok(())
}

fn answer(host: &Host, question: &[&str]) -> Result<Value, Box<dyn std::error::Error>> {
    let command = ["usher", "--json", "mac"].iter().chain(question);
    Ok(serde_json::from_str(&host.run(command)?.stdout)?)
}

/// The reason that a module is not loaded.
fn refused(host: &Host, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let output = host.command(["usher", "mac", "load", name]).run()?;
    assert!(!output.status.success(), "{name}: {output:?}");
    Ok(output.stderr)
}

/// What `usher mac if` says of the loopback interface: its label in force, and that of the policy.
fn label_of_lo(host: &Host) -> Result<Value, Box<dyn std::error::Error>> {
    let listed = host.run(["usher", "--json", "mac", "if"])?.stdout;
    let listed: Vec<Value> = serde_json::from_str(&listed)?;
    let lo = listed.iter().find(|interface| interface["name"] == "lo");
    let lo = lo.ok_or("no loopback interface")?;
    assert_eq!(lo["is_present"], true);
    Ok(json!([lo["label"], lo["policy"]]))
}

/// Whether this kernel runs modules, and they may be loaded here.
fn may_load(host: &Host) -> Result<bool, Box<dyn std::error::Error>> {
    if std::env::var_os("USHER_VM").is_none() {
        println!("skipped: modules decide for the whole system, so they run in a virtual machine");
        return Ok(false);
    }
    // Tried once: it takes long.
    static FOUND: OnceLock<bool> = OnceLock::new();
    let works = match FOUND.get() {
        Some(works) => *works,
        None => {
            let found = host.run(["usherd", "probe", "MAC framework"])?.stdout;
            let found: Value = serde_json::from_str(&found)?;
            *FOUND.get_or_init(|| found[0]["works"] == true)
        }
    };
    if !works {
        println!("skipped: this kernel runs no modules");
    }
    Ok(works)
}

/// Whether alice can execute this program.
fn executes(host: &Host, program: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let output = host.command([program]).user("alice").run()?;
    let is_refused = output.stderr.contains("Permission denied");
    assert_eq!(output.status.success(), !is_refused, "{output:?}");
    Ok(output.status.success())
}

/// Whether a process of alice with this label, which root begins, opens a file.
fn opens(host: &Host, label: &str, file: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let as_alice = ["setpriv", "--reuid=2001", "--clear-groups", "cat", file];
    let command = ["setpmac", label].into_iter().chain(as_alice);
    let output = host.command(command).run()?;
    let is_refused = output.stderr.contains("Permission denied");
    assert_eq!(output.status.success(), !is_refused, "{output:?}");
    Ok(output.status.success())
}

// Threat model: M97
#[test]
fn a_module_from_a_file_decides_by_labels() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if !may_load(&host)? {
        return Ok(());
    }
    commands(&host, &root(), "make install-module-headers")?;
    let example = fs::read_to_string(root().join("examples/module/project.bpf.c"))?;
    // It decides about directories, too: their labels are needed before anything below can be reached.
    let more = "MAC_CHECK(inode_permission) { return project(object_label) == 9 ? -EACCES : 0; }\n";
    install(&host, "project", &format!("{example}{more}"))?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let prepared = "mkdir -p /srv/projects; mount -t tmpfs none /srv/projects; cd /srv/projects\n\
                    mkdir -m 1777 plans; echo text >plans/seven; echo text >plans/open\n\
                    setfmac -R project/0 /srv/projects; setfmac project/7 plans/seven\n";
    host.run(["sh", "-ec", prepared])?;
    let write = |interface: &str| {
        let label = format!("interface \"lo\" label \"{interface},other/x\";");
        let policy = format!("mac framework {{ multilabel \"/srv/projects\"; {label} }}\n");
        host.write("/etc/usher/policy.d/mac.policy", &policy)
    };
    write("project/7")?;
    host.run(["usher", "policy", "apply"])?;
    // An interface has the elements of modules that are in force.
    assert_eq!(label_of_lo(&host)?, json!([null, "other/x,project/7"]));
    host.run(["usher", "mac", "load", "project"])?;
    assert_eq!(
        label_of_lo(&host)?,
        json!(["project/7", "other/x,project/7"])
    );
    write("project/seven")?;
    let wrong = host.command(["usher", "policy", "apply"]).run()?;
    let told = "interface lo: the module project: `seven` is not a number";
    assert!(
        !wrong.status.success() && wrong.stderr.contains(told),
        "{wrong:?}"
    );
    assert_eq!(
        label_of_lo(&host)?,
        json!(["project/7", "other/x,project/7"])
    );
    write("project/7")?;
    let (seven, open) = ("/srv/projects/plans/seven", "/srv/projects/plans/open");
    let can_reach = || opens(&host, "project/7", open);
    eventually("the directories are known", can_reach)?;
    assert!(opens(&host, "project/7", seven)?);
    assert!(!opens(&host, "project/8", seven)?);
    assert!(opens(&host, "project/8", open)?);

    // A process shows its label to everyone, and only root changes it.
    let shown = host.run(["setpmac", "project/7", "getpmac"])?;
    assert_eq!(shown.stdout, "project/7\n");
    let own = host.command(["setpmac", "project/7", "true"]).user("alice");
    let own = own.run()?;
    assert!(
        !own.status.success() && own.stderr.contains("refuses"),
        "{own:?}"
    );
    let wrong = host.command(["setpmac", "project/seven", "true"]).run()?;
    assert!(!wrong.status.success(), "{wrong:?}");

    // A new file has its label at once, and the labeller writes it.
    let new = "/srv/projects/plans/new";
    let make = format!("echo new >{new}; chmod 644 {new}");
    host.run(["setpmac", "project/7", "sh", "-c", &make])?;
    assert!(!opens(&host, "project/8", new)?);
    assert!(opens(&host, "project/7", new)?);
    let is_written = || Ok(host.run(["getfmac", new])?.stdout.contains("project/7"));
    eventually("the label is written", is_written)?;

    // The next labeller goes on; a module that is loaded again reads all labels anew.
    labeller.restart()?;
    assert!(!opens(&host, "project/8", new)?);
    host.run(["usher", "mac", "unload", "project"])?;
    // The twin without the module.
    host.run_as("alice", ["cat", new])?;
    host.run(["usher", "mac", "load", "project"])?;
    eventually("the directories are known again", can_reach)?;
    assert!(!opens(&host, "project/8", new)?);
    assert!(opens(&host, "project/7", new)?);
    Ok(())
}

// Threat model: M15
#[test]
fn a_file_that_is_no_module_is_refused_and_leaves_nothing() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    commands(&host, &root(), "make install-module-headers")?;
    let _labeller = host.start_daemon(Role::Labeller)?;
    let fine = "MAC_CHECK(task_kill) { return 0; }\n";
    install(&host, "fine", &format!("MAC_POLICY(fine);\n{fine}"))?;
    install(&host, "misnamed", &format!("MAC_POLICY(other);\n{fine}"))?;
    install(&host, "empty", "MAC_POLICY(empty);\n")?;
    install(&host, "none", &format!("MAC_POLICY(none);\n{fine}"))?;
    let shell = format!(
        "cd {MODULES}; head -c 700 fine.bpf.o >cut.bpf.o; cp /bin/true elf.bpf.o; echo x >text.bpf.o\n\
         cp fine.bpf.o open.bpf.o; chmod 666 open.bpf.o\n\
         cp fine.bpf.o given.bpf.o; chown alice given.bpf.o\n\
         ln -s fine.bpf.o link.bpf.o; chmod 644 [!ol]*.bpf.o"
    );
    host.run(["sh", "-ec", &shell])?;
    for (name, reason) in [
        (
            "misnamed",
            "misnamed.bpf.o declares the module other; name the file other.bpf.o",
        ),
        ("empty", "it has no check"),
        ("none", "there are two modules none"),
        ("cut", "it is no object file, or not all of one"),
        ("elf", "it is compiled for another machine"),
        ("text", "it is no object file"),
        (
            "open",
            "others than root can write /usr/local/lib/usher/mac/open.bpf.o",
        ),
        ("given", "belongs to uid 2001"),
        ("link", "is a symbolic link"),
        ("absent", "there is no module absent"),
        ("../mac/fine", "there is no module ../mac/fine"),
    ] {
        let told = refused(&host, name)?;
        assert!(told.contains(reason), "{name}: {told}");
    }
    let listed = answer(&host, &["list"])?;
    let unusable = listed["unusable"].as_object().ok_or("no list")?;
    let names: Vec<&str> = unusable.keys().map(String::as_str).collect();
    let expected = [
        "cut", "elf", "empty", "given", "link", "misnamed", "none", "open", "text",
    ];
    assert_eq!(names, expected, "{listed}");
    assert_eq!(
        listed["available"],
        json!([
            "test",
            "bsdextended",
            "ubns",
            "biba",
            "mls",
            "lomac",
            "portacl",
            "seeotheruids",
            "partition",
            "ifoff",
            "te",
            "fine"
        ])
    );
    // A folder that others can write has no modules.
    host.run(["chmod", "775", MODULES])?;
    assert!(
        refused(&host, "fine")?.contains("others than root can write /usr/local/lib/usher/mac (")
    );
    let status = answer(&host, &["status"])?;
    assert!(
        status["troubles"][0]
            .as_str()
            .is_some_and(|trouble| trouble.contains("go-w"))
    );
    host.run(["chmod", "755", MODULES])?;
    assert_eq!(answer(&host, &["status"])?["troubles"], json!([]));
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    assert!(!host.path("/var/lib/usher/labeller/modules.json").exists());
    // The twin of all: it is refused by nothing but a kernel that runs no modules.
    if may_load(&host)? {
        host.run(["usher", "mac", "load", "fine"])?;
        host.run(["usher", "mac", "unload", "fine"])?;
    }
    Ok(())
}

#[test]
fn an_unreadable_list_of_modules_is_not_replaced() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    host.run(["mkdir", "-p", "/var/lib/usher/labeller"])?;
    host.write(LIST, "[\"none\"")?;
    let _labeller = host.start_daemon(Role::Labeller)?;
    for command in ["load", "unload"] {
        let output = host.command(["usher", "mac", command, "none"]).run()?;
        assert!(
            !output.status.success() && output.stderr.contains(LIST),
            "{output:?}"
        );
    }
    let status = answer(&host, &["status"])?;
    assert!(
        status["troubles"][0]
            .as_str()
            .is_some_and(|trouble| trouble.contains(LIST))
    );
    assert_eq!(host.read(LIST)?, "[\"none\"");
    // The twin: mended, it is read without a restart.
    host.write(LIST, "[]")?;
    let output = host.command(["usher", "mac", "unload", "none"]).run()?;
    assert!(
        output.stderr.contains("no module named none is loaded"),
        "{output:?}"
    );
    Ok(())
}
