//! Policy modules from files, and the document that teaches how to write one.
#![forbid(unsafe_code)]

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

/// The files and commands of the document, in its order.
enum Step {
    File(String, String),
    Commands(String),
    /// What the commands before it print.
    Output(String),
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The steps of docs/writing-a-module.md.
fn document() -> Result<Vec<Step>, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(root().join("docs/writing-a-module.md"))?;
    let mut steps = Vec::new();
    let mut rest = text.as_str();
    while let Some((before, block)) = rest.split_once("\n```") {
        let (block, after) = block.split_once("\n```\n").ok_or("a block has no end")?;
        let (kind, body) = block.split_once('\n').ok_or("a block has no text")?;
        let body = format!("{body}\n");
        steps.push(match kind {
            "c" => {
                // The last words before it: `NAME`:
                let name = before.trim_end().strip_suffix("`:");
                let name = name.and_then(|name| name.rsplit('`').next());
                Step::File(name.ok_or("a file has no name")?.to_owned(), body)
            }
            "sh" => Step::Commands(body),
            "text" => Step::Output(body),
            other => return Err(format!("a block of {other}").into()),
        });
        rest = after;
    }
    Ok(steps)
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
    host.run(["usher", "init", "--name", "server"])?;
    let key = host.read("/etc/usher/host_key.pub")?;
    let own = format!(
        "host server {{ address {}; key \"{}\"; }}\n",
        host.ipv4(),
        key.trim()
    );
    host.write("/etc/usher/policy.d/hosts.policy", own)?;
    host.run(["usher", "policy", "apply"])?;
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

#[test]
fn the_commands_of_the_document_lead_to_a_module_in_force() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    let is_loaded_here = may_load(&host)?;
    let _labeller = host.start_daemon(Role::Labeller)?;
    for (program, owner) in [("/srv/own", "alice"), ("/srv/roots", "root")] {
        host.write_program(program, "#!/bin/true\n")?;
        host.run(["chown", owner, program])?;
    }
    let mut printed = String::new();
    let (mut files, mut lines) = (0, 0);
    for step in document()? {
        match step {
            Step::File(name, text) => {
                if name.starts_with("trusted_path") {
                    lines = lines.max(text.lines().count());
                }
                let example = fs::read_to_string(root().join("examples/module").join(&name))?;
                assert_eq!(text, example, "examples/module/{name}");
                host.write(format!("{WORK}/{name}"), text)?;
                files += 1;
            }
            Step::Commands(text) if text.starts_with("usher mac") && !is_loaded_here => {
                printed.clear();
            }
            Step::Commands(text) => {
                let folder = match text.starts_with("make ") {
                    true => root(),
                    false => WORK.into(),
                };
                printed = commands(&host, &folder, &text)?;
                if text.starts_with("usher mac load") {
                    assert!(!executes(&host, "/srv/own")?);
                    assert!(executes(&host, "/srv/roots")?);
                }
            }
            Step::Output(text) if is_loaded_here => assert_eq!(printed, text),
            Step::Output(_) => {}
        }
    }
    assert_eq!((files, lines <= 32), (3, true), "{lines} lines");
    // The test of the module can fail.
    let broken = "sed 's/022/02/' trusted_path.bpf.c >broken.bpf.c\n\
                  sed 's/trusted_path.bpf.c/broken.bpf.c/' trusted_path_test.c >broken_test.c\n\
                  cc $(pkg-config --cflags usher-module) -o broken_test broken_test.c\n\
                  if ./broken_test; then exit 1; fi\n";
    commands(&host, Path::new(WORK), broken)?;
    // Not in force any more, and seen as a module that can be.
    assert!(executes(&host, "/srv/own")?);
    let listed = answer(&host, &["list"])?;
    assert_eq!(listed["modules"], json!([]));
    let available = listed["available"].as_array().ok_or("no list")?;
    assert!(available.contains(&json!("trusted_path")), "{listed}");
    Ok(())
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

#[test]
fn a_module_from_a_file_is_loaded_again_and_says_if_it_changed() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if !may_load(&host)? {
        return Ok(());
    }
    commands(&host, &root(), "make install-module-headers")?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let refusing = |mode: &str| {
        format!(
            "MAC_POLICY(modes);\nMAC_CHECK(bprm_check_security)\n\
             {{ return request->file.mode == {mode} ? -EACCES : 0; }}\n"
        )
    };
    for (program, mode) in [("/srv/one", "0751"), ("/srv/two", "0715")] {
        host.write_program(program, "#!/bin/true\n")?;
        host.run(["chmod", mode, program])?;
    }
    let both = || {
        Ok::<_, Box<dyn std::error::Error>>([
            executes(&host, "/srv/one")?,
            executes(&host, "/srv/two")?,
        ])
    };
    let read = |name: &str, what: &str| {
        Ok::<_, Box<dyn std::error::Error>>(answer(&host, &["list", name])?[what].clone())
    };
    let changed = || {
        Ok::<_, Box<dyn std::error::Error>>(
            answer(&host, &["list", "modes"])?["has_changed"].clone(),
        )
    };
    install(&host, "modes", &refusing("0100751"))?;
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!(both()?, [false, true]);
    let told = refused(&host, "modes")?;
    assert!(told.contains("loaded already"), "{told}");
    assert_eq!(changed()?, false);
    let file = format!("{MODULES}/modes.bpf.o");
    assert_eq!(answer(&host, &["list", "modes"])?["file"], json!(file));

    // Another labeller adopts it. A new file has no effect yet.
    labeller.crash()?;
    labeller.start()?;
    assert_eq!((both()?, changed()?), ([false, true], json!(false)));
    install(&host, "modes", &refusing("0100715"))?;
    assert_eq!((both()?, changed()?), ([false, true], json!(true)));

    // As after a reboot: the file as it is now, and it says so.
    labeller.end()?;
    host.run(["usherd", "release"])?;
    assert_eq!(both()?, [true, true]);
    labeller.start()?;
    assert_eq!((both()?, changed()?), ([true, false], json!(true)));
    host.run(["usher", "mac", "unload", "modes"])?;
    assert_eq!(both()?, [true, true]);
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!((both()?, changed()?), ([true, false], json!(false)));

    // Without its file it is not loaded again, and that is told.
    labeller.end()?;
    host.run(["usherd", "release"])?;
    host.run(["mv", &file, "/run/lab/aside"])?;
    labeller.start()?;
    assert_eq!(both()?, [true, true]);
    let status = answer(&host, &["status"])?;
    let told = status["troubles"][0].as_str().unwrap_or_default();
    assert!(told.contains("there is no module modes"), "{status}");
    host.run(["mv", "/run/lab/aside", &file])?;
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!(both()?, [true, false]);

    // A file of the name of a built-in module, from a time when there was no such module.
    host.run(["usher", "mac", "unload", "modes"])?;
    labeller.end()?;
    let renamed = refusing("0100751").replace("(modes)", "(bsdextended)");
    install(&host, "bsdextended", &renamed)?;
    host.write(LIST, r#"[{"name":"bsdextended","digest":""}]"#)?;
    labeller.start()?;
    assert_eq!(both()?, [false, true]);
    host.run(["usher", "policy", "apply"])?;
    labeller.crash()?;
    labeller.start()?;
    assert_eq!(
        (both()?, read("bsdextended", "has_changed")?),
        ([false, true], json!(true))
    );
    host.run(["usher", "mac", "unload", "bsdextended"])?;
    assert!(refused(&host, "bsdextended")?.contains("there are two modules"));
    host.run(["rm", &format!("{MODULES}/bsdextended.bpf.o")])?;

    // Three times the labeller has ended while it loaded a module: it does so once more if it is told.
    labeller.end()?;
    host.write(
        LIST,
        r#"[{"name":"modes","digest":""},{"name":"none","digest":null}]"#,
    )?;
    host.write(TRIALS, r#"{"modes":3}"#)?;
    labeller.start()?;
    assert_eq!(both()?, [true, true]);
    let status = answer(&host, &["status"])?;
    let told = status["troubles"][0].as_str().unwrap_or_default();
    assert!(told.contains("the labeller has ended 3 times"), "{status}");
    assert_eq!(
        status["modules"][0]["name"], "none",
        "the modules after it are loaded"
    );
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!(both()?, [true, false]);
    assert_eq!(host.read(TRIALS)?, "{}");
    host.run(["usher", "mac", "unload", "none"])?;

    // The verifier refuses a module that never ends; what is in force stays so, alone.
    let hooks = answer(&host, &["status"])?["hooks"].clone();
    let endless = "MAC_POLICY(endless);\nMAC_CHECK(task_kill)\n\
                   { volatile __u32 at = 1; while (at) at = request->signal | 1; return 0; }\n\
                   MAC_CHECK(file_open) { return 0; }\n";
    install(&host, "endless", endless)?;
    let told = refused(&host, "endless")?;
    assert!(
        told.contains("the kernel refuses the module endless"),
        "{told}"
    );
    let status = answer(&host, &["status"])?;
    assert_eq!(status["hooks"], hooks);
    assert_eq!(
        status["modules"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    assert_eq!(both()?, [true, false]);
    host.run(["usher", "mac", "unload", "modes"])?;
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    Ok(())
}
