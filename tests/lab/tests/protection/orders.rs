//! Mandatory protection holds in every order of starting the service, the protector, the policy, and the
//! keeper. A capture of the packets that leave the server decides.

use usher_lab::protected::watch_leaving;
use usher_lab::{ALICE, Lab};

use super::*;

/// The port of [`World::serve`], and that of the service that demands protection.
const WEB: u16 = 8000;
const MAIL: u16 = 143;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The program that a block governs begins to listen.
    Service,
    Protector,
    /// It is written and applied; without it, it has been in force before.
    Policy,
    Keeper,
}
use Step::{Keeper, Policy, Protector, Service};

/// Has the client try, until the server has refused a packet, and returns whether the capture shows an
/// answer. The echo is the last that it shows.
fn is_answered(
    world: &World,
    refused: impl Fn() -> Result<u64, Box<dyn std::error::Error>>,
) -> Result<bool, Box<dyn std::error::Error>> {
    let mut leaving = watch_leaving(&world.server)?;
    let before = refused()?;
    let url = format!("http://{}:{WEB}/page", world.server.ipv4());
    let mut client = world
        .intruder
        .spawn([CLIENT, "-sS", "-m", "150", "-o", "/run/page", &url])?;
    eventually("its packet is refused, or it is served", || {
        Ok(refused()? > before || world.intruder.path("/run/page").exists())
    })?;
    client.end()?;
    assert!(world.gets_an_echo(&world.intruder)?);
    let intruder = world.intruder.ipv4();
    let seen = leaving.read_past(&format!("tcp {intruder} 9000\n"), PATIENCE)?;
    leaving.end()?;
    Ok(seen.contains(&format!("tcp {intruder} {WEB}\n")))
}

/// Orders without [`Step::Policy`] begin with a policy that was in force before a reboot.
// Threat model: P37
#[test]
fn a_program_is_held_in_every_order_of_starting() -> Outcome {
    let orders = [
        vec![Service, Protector, Policy],
        vec![Protector, Service, Policy],
        vec![Protector, Policy, Service],
        vec![Service, Protector],
        vec![Protector, Service],
    ];
    let world = World::new()?;
    let host = &world.server;
    let apply = || host.run(["usher", "policy", "apply"]);
    let mut protector = host.start_daemon(Role::Protector)?;
    for order in orders {
        if order.contains(&Policy) {
            host.run(["rm", "-f", "/etc/usher/policy.d/secure.policy"])?;
            apply()?;
        }
        protector.stop()?;
        host.run(["usherd", "release"])?;
        let mut services = Vec::new();
        for step in &order {
            match step {
                Service => services = world.serve()?,
                Protector => protector.start()?,
                Policy => {
                    world.write_secure()?;
                    apply()?;
                }
                Keeper => {}
            }
        }
        let shown = json(host, &["protection", "show"])?;
        assert_eq!(shown["troubles"], troubles_of_charon(&shown), "{order:?}");
        let refused = || {
            let shown = json(host, &["protection", "show"])?;
            Ok(shown["counters"]["refused_plain"].as_u64().unwrap_or(0))
        };
        assert!(!is_answered(&world, refused)?, "{order:?}");
        assert!(world.gets_the_page(&world.trusted)?, "{order:?}: as it may");
        for mut service in services {
            service.end()?;
        }
    }
    Ok(())
}

/// The troubles about charon, which does not run here.
fn troubles_of_charon(shown: &serde_json::Value) -> serde_json::Value {
    let troubles = shown["troubles"].as_array().into_iter().flatten();
    let of_charon = troubles.filter(|one| one.as_str().is_some_and(|text| text.contains("charon")));
    of_charon.cloned().collect()
}

/// No block may name the keeper, whose listeners serve other programs, and the demand of a service is
/// kept whichever daemon comes first.
// Threat model: P37
#[test]
fn a_service_is_held_in_every_order_of_starting() -> Outcome {
    let mut mail = Lab::mail()?;
    let host = mail.mailhost.clone();
    let policy = "/etc/usher/policy.d/mail.policy";
    let plain = host.read(policy)?;
    let demanding = plain.replace("hosts laptop;", "hosts laptop; protection encryption;");
    assert_ne!(plain, demanding);
    let mut protector = host.start_daemon(Role::Protector)?;
    let program = host.run(["sh", "-c", "command -v usherd"])?.stdout;
    let block = format!(
        "application {} {{ network 0.0.0.0/0 protected Mail; protection Mail {{ localport={MAIL} \
         remoteport=any encryption mandatory; localport=any remoteport=any authentication optional; }} }}\n",
        program.trim()
    );
    host.write(policy, format!("{plain}{block}"))?;
    let refused = host.command(["usher", "policy", "apply"]).run()?;
    assert!(!refused.status.success(), "{}", refused.stderr);
    let remedy = "write `protection encryption;`";
    assert!(refused.stderr.contains(remedy), "{}", refused.stderr);
    let works = host.run(["usherd", "probe", "protected services"])?.stdout;
    let works: serde_json::Value = serde_json::from_str(&works)?;
    if works[0]["works"] != true {
        println!("skipped: this kernel has no programs for netfilter");
        return Ok(());
    }
    let orders = [
        vec![Keeper, Protector, Policy],
        vec![Protector, Policy, Keeper],
        vec![Keeper, Protector],
        vec![Protector, Keeper],
    ];
    for order in orders {
        if order.contains(&Policy) {
            host.write(policy, &plain)?;
            host.run(["usher", "policy", "apply"])?;
        }
        mail.keeper.stop()?;
        protector.stop()?;
        host.run(["usherd", "release"])?;
        for step in &order {
            match step {
                Keeper => mail.keeper.start()?,
                Protector => protector.start()?,
                Policy => {
                    host.write(policy, &demanding)?;
                    let applied = host.command(["usher", "policy", "apply"]).run()?;
                    // It says so if the keeper does not run.
                    let is_late = applied
                        .stderr
                        .contains("is in force, but the keeper does not run");
                    assert!(applied.status.success() || is_late, "{}", applied.stderr);
                }
                Service => {}
            }
        }
        let refused = || host.number(Role::Keeper, "packets_refused");
        let before = refused()?;
        let mut leaving = watch_leaving(&host)?;
        let connect = || {
            let command = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
            command.user(ALICE.name).spawn()
        };
        let mut client = connect()?;
        eventually("its SYN is refused", || {
            // The verifier may not have found the new keeper yet.
            if client.has_ended()? {
                client = connect()?;
            }
            Ok(refused()? > before)
        })?;
        client.end()?;
        // The last that leaves: the reset of a closed port.
        let closed = format!("TCP:{}:9000", host.ipv4());
        mail.stranger.command(["socat", "-", &closed]).run()?;
        let end = format!("tcp {} 9000\n", mail.stranger.ipv4());
        let seen = leaving.read_past(&end, PATIENCE)?;
        leaving.end()?;
        let answer = format!("tcp {} {MAIL}\n", mail.laptop.ipv4());
        assert!(!seen.contains(&answer), "{order:?}: {seen}");
    }
    // The twin: without the demand she is served.
    host.write(policy, &plain)?;
    host.run(["usher", "policy", "apply"])?;
    let command = mail.laptop.command(["usher", "connect", "mailhost:imap"]);
    let mut client = command.user(ALICE.name).spawn()?;
    let greeting = client.read_past("* ", PATIENCE)?;
    assert!(greeting.starts_with("* PREAUTH"), "{greeting}");
    Ok(())
}
