//! Copies of hosts' configurations: others may have written them.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const HOST: &str = "host laptop {\n  address 192.0.2.1;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\";\n}\n\
     host desk {\n  address 192.0.2.2;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t\";\n}\n\
     service imap { program \"/bin/cat\"; listen 143; style user; users mail; hosts any; }\n\
     include \"link\";\n";

#[test]
fn an_include_in_a_copy_shows_no_file_outside_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("laptop/policy.d")).unwrap();
    fs::write(path("laptop/policy.d/site.policy"), HOST).unwrap();
    fs::write(path("laptop/shared"), "users mail { member alice; }").unwrap();
    fs::write(path("outside"), "the secret of somebody else").unwrap();
    let ask = |target: &str| {
        let link = path("laptop/policy.d/link");
        let _ = fs::remove_file(&link);
        symlink(target, link).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["policy", "who-can", "imap@laptop", "--hosts", "."])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(told).unwrap())
    };
    let (status, told) = ask("../shared");
    assert!(told.contains("alice"), "{status:?} {told}");
    for outside in ["../../outside", path("outside").to_str().unwrap()] {
        let (status, told) = ask(outside);
        assert_eq!(status, Some(2), "{told}");
        let place = "laptop/policy.d/site.policy:10:1:";
        assert!(told.contains(place), "{told}");
        assert!(told.contains("it leads out of"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
