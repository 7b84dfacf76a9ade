//! Apache Kafka for the tests: its jars, fetched once with Maven into a cache folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The versions that the tests run on: the last one of the old line, and the newest. `redrive_testkit::kafka` has the same.
const VERSIONS: [&str; 2] = ["3.9.2", "4.3.1"];

/// Fetches the versions that are not there yet.
pub(super) fn fetch() -> anyhow::Result<()> {
    VERSIONS.into_iter().try_for_each(|version| fetch_version(&cache()?, version))
}

/// The folder that `redrive_testkit::kafka` looks into.
fn cache() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("redrive-kafka"))
}

fn fetch_version(cache: &Path, version: &str) -> anyhow::Result<()> {
    let folder = cache.join(version);
    if folder.join("libs").exists() {
        return Ok(());
    }
    eprintln!("install: fetching Kafka {version}");
    // Into a folder of its own, renamed when it is whole: a fetch that was cut off is not taken for a server.
    let fresh = cache.join(format!("{version}.{}", std::process::id()));
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    fs::write(fresh.join("pom.xml"), pom(version))?;
    let words = [
        "--quiet",
        "--batch-mode",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        "-DoutputDirectory=libs",
    ];
    let status = Command::new("mvn").args(words).current_dir(&fresh).stdout(std::io::stderr()).status();
    if !status.context("cannot run `mvn`")?.success() {
        let _ = fs::remove_dir_all(&fresh);
        bail!(
            "Maven could not fetch Kafka {version}; is there a network, or a mirror in ~/.m2/settings.xml?"
        );
    }
    match fs::rename(&fresh, &folder) {
        Ok(()) => Ok(()),
        // Another process was faster.
        Err(_) if folder.join("libs").exists() => fs::remove_dir_all(&fresh).map_err(Into::into),
        Err(error) => Err(error).with_context(|| format!("cannot rename {}", fresh.display())),
    }
}

fn pom(version: &str) -> String {
    format!(
        r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>redrive</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_there_is_not_fetched_again() {
        let cache = std::env::temp_dir().join(format!("redrive-xtask-kafka-{}", std::process::id()));
        fs::create_dir_all(cache.join("1.2.3").join("libs")).unwrap();
        let fetched = fetch_version(&cache, "1.2.3");
        fs::remove_dir_all(&cache).unwrap();
        fetched.unwrap();
    }

    #[test]
    fn the_pom_names_the_version() {
        assert!(pom("4.3.1").contains("<version>4.3.1</version>"));
    }
}
