//! Faults: parts that are missing, or die.

use super::*;
use usher_lab::Signal;
use usher_lab::protected::start_charon;

/// Prints a line when there are packets of TCP or UDP of the host, in the clear and not of IKE, and one
/// for each line that it reads.
const CLEAR: &str = "
import select, socket, sys
host = socket.inet_aton(sys.argv[1])
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
packets.bind(('eth0', 3))
print('ready', flush=True)
clear = 0
while True:
    for ready in select.select([packets, sys.stdin], [], [])[0]:
        if ready is packets:
            packet, sender = packets.recvfrom(65535)
            start = (packet[0] & 15) * 4
            port = int.from_bytes(packet[start + 2:start + 4], 'big')
            if sender[1] == 0x800 and packet[12:16] == host and packet[9] in (6, 17):
                clear += port in (9000, 9001)
        else:
            sys.stdin.readline()
            print('clear', clear, 'end', flush=True)
";

/// Sends to two hosts without end, by old and new sockets.
const TRAFFIC: &str = "
import socket, sys, time
old = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
old.setblocking(False)
print('ready', flush=True)
while True:
    for to in sys.argv[1:]:
        new = socket.socket()
        new.setblocking(False)
        new.connect_ex((to, 9000))
        for datagrams in (old, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
            try:
                datagrams.setblocking(False)
                datagrams.sendto(b'x', (to, 9001))
            except OSError:
                pass
    time.sleep(0.001)
";

/// Changes of one of Usher's entries without end do not put off that the SPD is put right, and are
/// reported.
// Threat model: P12
#[test]
fn a_contested_spd_is_put_back_all_the_same() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _protector = host.start_daemon(Role::Protector)?;
    let policy = format!(
        "application {CLIENT} {{ network 0.0.0.0/0 protected All; protection All {{ localport=any \
         remoteport=any encryption mandatory; }} }}\n"
    );
    host.write("/etc/usher/policy.d/all.policy", policy)?;
    host.run(["usher", "policy", "apply"])?;
    let listed = || -> Result<String, Box<dyn std::error::Error>> {
        Ok(host
            .run(["ip", "xfrm", "policy", "list", "dir", "out"])?
            .stdout)
    };
    let kept = "0x300000/0xf00000";
    // The entries of all destinations, and of the host's own addresses.
    let entries = listed()?.matches(kept).count();
    assert!(entries >= 2, "{}", listed()?);
    let contested = "dir out dst 0.0.0.0/0 mark 0x200000 mask 0xf00000";
    let flip = format!(
        "for n in $(seq 500); do echo xfrm policy delete {contested}; echo xfrm policy update \
         {contested} priority 162097 action allow; done > /root/flips; echo ready; while :; do ip -force -batch \
         /root/flips >/dev/null 2>&1; done"
    );
    let _flipping = host.spawn(["sh", "-c", &flip])?;
    let troubles = || -> Result<String, Box<dyn std::error::Error>> {
        Ok(json(host, &["protection", "show"])?["troubles"].to_string())
    };
    for destination in ["0.0.0.0/0", "::/0"] {
        let removed =
            format!("ip xfrm policy delete dir out dst {destination} mark 0x300000 mask 0xf00000");
        host.run(["sh", "-c", &removed])?;
    }
    eventually("the entries are put back", || {
        Ok(listed()?.matches(kept).count() == entries)
    })?;
    eventually("it is reported", || {
        Ok(troubles()?.contains("keeps changing"))
    })?;
    Ok(())
}

/// The protector is confined: it can read what packages install, and says what it cannot.
// Threat model: P40
#[test]
fn a_block_that_names_a_script_is_reported() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let in_guest = std::env::var_os("USHER_VM").is_some();
    let more = in_guest.then_some("--without-lsm");
    let protector = host.start_daemon_with(Role::Protector, more)?;
    for host in world.protected() {
        host.run(["cp", "/usr/bin/savelog", "/root/script"])?;
        host.run(["cp", "/usr/bin/env", "/root/program"])?;
    }
    // Debian's, of the package debianutils or of perl-base.
    let programs = [
        "/usr/bin/savelog",
        "/usr/bin/env",
        "/root/script",
        "/root/program",
    ];
    let block = format!(
        "application {} {{ network 0.0.0.0/0 trusted; }}\n",
        programs.join(", ")
    );
    world.write_policy("scripts", &block)?;
    // Before and while it is in force.
    let warned = |host: &Host, act: &str| -> Result<String, Box<dyn std::error::Error>> {
        Ok(host.run(["usher", "policy", act])?.stderr)
    };
    for act in ["check", "apply", "check"] {
        let told = warned(host, act)?;
        let about = |path: &str| told.contains(&format!("{path} is a script of `/bin/sh"));
        assert!(about("/usr/bin/savelog"), "{act}: {told}");
        assert!(
            about("/root/script") && told.contains("--without-lsm"),
            "{told}"
        );
        assert!(!about("/usr/bin/env") && !about("/root/program"), "{told}");
    }
    let shown = json(host, &["protection", "show"])?;
    let troubles = shown["troubles"].as_array().ok_or("no troubles")?;
    let says = |path: &str, words: &str| {
        let mut told = troubles.iter().filter_map(serde_json::Value::as_str);
        told.any(|told| told.starts_with(&format!("{path}: ")) && told.contains(words))
    };
    let [script, program, unread @ ..] = programs;
    assert!(says(script, "a script is not governed"), "{shown:#}");
    assert!(!says(program, ""), "{shown:#}");
    if protector
        .log()?
        .contains("file access confined status=Absent")
    {
        eprintln!("skipped: this kernel has no Landlock");
    } else {
        for path in unread {
            assert!(says(path, "cannot read"), "{path}: {shown:#}");
        }
    }
    // LSM programs tell scripts apart, and so no file need be read.
    if in_guest {
        let other = &world.server;
        let _protector = other.start_daemon(Role::Protector)?;
        let told = warned(other, "apply")?;
        assert!(!told.contains("is a script of"), "{told}");
        let shown = json(other, &["protection", "show"])?.to_string();
        for path in programs {
            assert!(!shown.contains(&format!("{path}: ")), "{path}: {shown:#}");
        }
    } else {
        println!("skipped: the part with LSM programs, which run in a virtual machine only");
    }
    Ok(())
}

#[test]
fn an_absent_charon_is_named() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    eventually("the trouble is known", || {
        let told = host.run(["usher", "protection", "peers"])?.stdout;
        Ok(told.contains("charon is not running"))
    })?;
    let doctor = host.command(["usher", "doctor"]).run()?.stdout;
    assert!(doctor.contains("charon is not running"), "{doctor}");
    Ok(())
}

#[test]
fn the_doctor_says_what_the_kernel_lacks_for_protection() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    host.run(["usher", "policy", "apply"])?;
    let names = ["protection", "IPsec", "listing sockets"];
    let probed = host.run(["usherd", "probe"].iter().chain(&names))?.stdout;
    let probed: serde_json::Value = serde_json::from_str(&probed)?;
    let probed = probed.as_array().ok_or("no list")?;
    assert_eq!(probed.len(), names.len(), "{probed:?}");
    let doctor = || -> Result<String, Box<dyn std::error::Error>> {
        Ok(host.command(["usher", "doctor"]).run()?.stdout)
    };
    let line = |found: &serde_json::Value, lacking: &str| {
        let mark = if found["works"] == true {
            "ok     "
        } else {
            lacking
        };
        let [name, detail] = ["name", "detail"].map(|word| found[word].as_str().unwrap_or(""));
        assert!(!detail.is_empty(), "{name}");
        format!("{mark}  {name}: {detail}\n")
    };
    // Without a block, nothing of it is needed.
    let told = doctor()?;
    for found in probed {
        let line = line(found, "absent ");
        assert!(told.contains(&line), "{line}{told}");
    }
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    let told = doctor()?;
    for found in probed {
        let line = line(
            found,
            if found["required"] == true {
                "MISSING"
            } else {
                "absent "
            },
        );
        assert!(told.contains(&line), "{line}{told}");
        let lacks = found["works"] == false && found["required"] == true;
        let summary = told
            .lines()
            .find(|line| line.contains("protects the traffic of"));
        let name = found["name"].as_str().unwrap_or_default();
        assert_eq!(
            summary.is_some_and(|line| line.contains(&format!(" {name}"))),
            lacks,
            "{told}"
        );
    }
    // The SAs of the trial are not this host's.
    assert_eq!(host.run(["ip", "xfrm", "state"])?.stdout, "");
    Ok(())
}

#[test]
fn a_host_without_its_ike_key_is_refused() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    let hosts = "/etc/usher/policy.d/hosts.policy";
    let whole = host.read(hosts)?;
    let statement = whole.find(" ike-key").ok_or("the statement")?;
    let end = statement + whole[statement..].find(';').ok_or("its end")? + 1;
    host.write(hosts, format!("{}{}", &whole[..statement], &whole[end..]))?;
    let stored = host.read("/var/lib/usher/applied.json").ok();
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(refused.stderr.contains("ike-key"), "{}", refused.stderr);
    assert_eq!(
        host.read("/var/lib/usher/applied.json").ok(),
        stored,
        "nothing was stored"
    );
    // The same with a policy that has only a name without an address yet.
    let named = format!(
        "application {CLIENT} {{\n  network files.test protected Files;\n  network 0.0.0.0/0 trusted;\n  \
         protection Files {{ localport=any remoteport=any encryption mandatory; }}\n}}\n"
    );
    world.write_policy("secure", &named)?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(refused.stderr.contains("ike-key"), "{}", refused.stderr);
    host.write(hosts, &whole)?;
    host.run(["usher", "policy", "apply"])?;
    Ok(())
}

/// Debian 12's charon has no ML-KEM: the doctor names it, and the twin without the word is silent.
// Threat model: P75
#[test]
fn the_doctor_names_what_charon_lacks_for_strong() -> Outcome {
    let world = World::new()?;
    let _charons = world.start_charons()?;
    let _protectors = world.start_protectors()?;
    let laptop = &world.laptop;
    let algorithms = laptop.run(["swanctl", "--list-algs"])?.stdout;
    if algorithms.contains("ML_KEM_768") {
        println!("skipped: this charon has ML-KEM");
        return Ok(());
    }
    let told = |word: &str| -> Result<(), Box<dyn std::error::Error>> {
        let policy = format!(
            "application {CLIENT} {{\n  network 0.0.0.0/0 protected Fast;\n  \
             protection Fast {{ localport=any remoteport=any encryption mandatory{word}; }}\n}}\n"
        );
        laptop.write("/etc/usher/policy.d/fast.policy", &policy)?;
        laptop.run(["usher", "policy", "apply"]).map(drop)?;
        Ok(())
    };
    let doctor = || {
        Ok(laptop
            .command(["usher", "doctor"])
            .run()?
            .stdout
            .contains("ML-KEM"))
    };
    let peers = || -> Result<String, Box<dyn std::error::Error>> {
        Ok(laptop.run(["usher", "protection", "peers"])?.stdout)
    };
    told(" strong")?;
    eventually("the doctor says what is missing", doctor)?;
    eventually(
        "so do the peers",
        || Ok(peers()?.contains("strongSwan 6.0")),
    )?;
    told("")?;
    eventually("nothing is missing without the word", || Ok(!doctor()?))?;
    eventually("nor in the peers", || Ok(!peers()?.contains("ML-KEM")))?;
    Ok(())
}

/// `swanctl --load-all` unloads everything that its files lack. Debian's unit runs it after each start, which
/// is no trouble, and at each reload, which is one.
// Threat model: P68
#[test]
fn what_swanctl_unloads_is_loaded_again_and_told() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let _charon = start_charon(host)?;
    let mut protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    let tellers: [&[&str]; 3] = [
        &["protection", "show"],
        &["protection", "peers"],
        &["doctor"],
    ];
    let told = |protector: &usher_lab::Daemon| -> Result<[bool; 4], Box<dyn std::error::Error>> {
        let words = "another program has taken";
        let mut told = [protector.log()?.contains(&format!("WARN {words}")); 4];
        for (told, words_of) in told[1..].iter_mut().zip(tellers) {
            let command = ["usher"].iter().chain(words_of);
            *told = host.command(command).run()?.stdout.contains(words);
        }
        Ok(told)
    };
    let has_connection = || -> Result<bool, Box<dyn std::error::Error>> {
        let listed = host.run(["swanctl", "--list-conns"])?.stdout;
        Ok(listed.contains("usher-server"))
    };
    eventually("charon has the connection", has_connection)?;
    assert_eq!(told(&protector)?, [false; 4]);
    // Once, which may be the start of charon's unit, and again.
    for _ in 0..2 {
        // It must not load the connection again before it was seen to be gone.
        protector.kill(Signal::STOP)?;
        host.run(["swanctl", "--load-all", "--noprompt"])?;
        assert!(!has_connection()?);
        protector.kill(Signal::CONT)?;
        eventually("charon has the connection again", has_connection)?;
    }
    eventually("it is told", || Ok(told(&protector)? == [true; 4]))
}

// Threat model: P50
#[test]
fn a_protector_that_is_killed_at_any_time_opens_no_hole() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let mut protector = host.start_daemon(Role::Protector)?;
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    let own = host.ipv4().to_string();
    let watch = |peer: &usher_lab::Host| -> Result<Running, Box<dyn std::error::Error>> {
        let mut watching = peer.spawn([SERVER, "-c", CLEAR, &own])?;
        watching.read_past("ready\n", PATIENCE)?;
        Ok(watching)
    };
    let (mut server, mut trusted) = (watch(&world.server)?, watch(&world.trusted)?);
    let peers = [&world.server, &world.trusted].map(|peer| peer.ipv4().to_string());
    let mut traffic = host.spawn([SERVER, "-c", TRAFFIC, &peers[0], &peers[1]])?;
    traffic.read_past("ready\n", PATIENCE)?;
    let more = "/etc/usher/policy.d/more.policy";
    let mut pause = 0;
    // A start takes the better part of a minute where guests are emulated.
    let rounds = if std::env::var_os("USHER_VM").is_some() {
        5
    } else {
        12
    };
    for round in 0..rounds {
        // In the middle of the start, of the first apply, of another one, or at rest.
        pause = (pause * 31 + 17 * round + 7) % 120_u64;
        host.write(
            more,
            format!("application /usr/bin/wget {{ network 10.{round}.0.0/16 untrusted; }}\n"),
        )?;
        let mut apply = host.spawn(["usher", "policy", "apply"])?;
        std::thread::sleep(std::time::Duration::from_millis(pause));
        protector.crash()?;
        apply.wait(PATIENCE)?;
        protector.start()?;
    }
    let clear = |watching: &mut Running| -> Result<String, Box<dyn std::error::Error>> {
        watching.write("\n")?;
        Ok(watching.read_past("end\n", PATIENCE)?)
    };
    eventually("the trusted host gets what it may", || {
        Ok(!clear(&mut trusted)?.contains("clear 0 "))
    })?;
    let seen = clear(&mut server)?;
    assert!(seen.contains("clear 0 "), "{seen}");
    traffic.end()?;
    Ok(())
}

/// Outside of virtual machines the lab starts protectors with `--without-lsm`.
// Threat model: P19
#[test]
fn missing_lsm_programs_are_reported() -> Outcome {
    let world = World::new()?;
    let host = &world.laptop;
    let mut protector = host.start_daemon(Role::Protector)?;
    let finding = || -> Result<Option<serde_json::Value>, Box<dyn std::error::Error>> {
        let told = host.command(["usher", "--json", "doctor"]).run()?.stdout;
        let found: Vec<serde_json::Value> = serde_json::from_str(&told)?;
        let mut found = found.into_iter();
        Ok(found.find(|found| found["name"] == "calls of governed programs"))
    };
    assert_eq!(finding()?, None, "nothing is protected yet");
    world.write_secure()?;
    host.run(["usher", "policy", "apply"])?;
    // The twin, where they run; they do not outlive a protector that was told to load none.
    if std::env::var_os("USHER_VM").is_some() {
        assert_eq!(finding()?.ok_or("no finding")?["works"], true);
        let shown = json(host, &["protection", "show"])?;
        assert_eq!(shown["unseen_calls"], serde_json::Value::Null);
        protector.stop()?;
        protector.add_arguments(["--without-lsm"]);
        protector.start()?;
    } else {
        println!("skipped: the part with LSM programs, which run in a virtual machine only");
    }
    let missing = finding()?.ok_or("no finding")?;
    assert_eq!(missing["works"], false, "{missing}");
    let detail = missing["detail"].as_str().unwrap_or_default();
    assert!(
        detail.contains("--without-lsm") && detail.contains("packet sockets"),
        "{detail}"
    );
    let shown = json(host, &["protection", "show"])?;
    assert_eq!(shown["unseen_calls"], "switched off by --without-lsm");
    let told = host.run(["usher", "protection", "show"])?.stdout;
    assert!(told.contains("packet sockets"), "{told}");
    Ok(())
}
