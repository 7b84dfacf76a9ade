//! Redrives as jobs.

use redrive::engine::desk::DeskError;
use redrive::store::operate::{EventRef, Refusal};
use redrive::triage::job::JobAct;
use redrive::triage::{Filter, Job, JobId, JobPlan, JobState, JobStrategy, RedriveOptions as How};
use redrive::{Event, Redrive, testing};

use crate::{SECOND, Service, desk, mails, patient, publish, started};

fn redrive_all(strategy: JobStrategy) -> JobPlan {
    JobPlan { filter: Filter::queue("mails"), act: JobAct::Redrive(How::default()), strategy }
}

/// An engine with this many dead letters.
async fn with_letters(service: &Service, letters: usize) -> Redrive {
    let redrive = started(service).await;
    let ids: Vec<String> = (0..letters).map(|number| format!("m-{number:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    service.breaks(&ids);
    publish(&redrive, "mails", None, &ids).await;
    testing::drain(&redrive).await;
    service.calls();
    redrive
}

async fn over(redrive: &Redrive, id: JobId) -> Job {
    for _ in 0..10_000 {
        let job = desk(redrive).job(id).await.unwrap().unwrap();
        if job.state.is_over() {
            return job;
        }
        tokio::time::sleep(SECOND / 10).await;
    }
    panic!("{:?} is not over", desk(redrive).job(id).await);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_planned_and_then_puts_all_back_at_its_rate() {
    let service = Service::default();
    let redrive = with_letters(&service, 30).await;
    service.mend();
    let job = redrive_all(JobStrategy { rate: Some(10.0), ..JobStrategy::default() });
    let plan = desk(&redrive).plan(&job).await.unwrap();
    assert_eq!((plan.matching.letters, plan.time), (30, 3 * SECOND));
    assert!(plan.warnings[0].contains("30 have attempts whose effect is unknown"), "{:?}", plan.warnings);
    let began = tokio::time::Instant::now();
    let id = desk(&redrive).start(job).await.unwrap();
    let job = over(&redrive, id).await;
    assert_eq!((job.state, job.taken, job.done, job.failed), (JobState::Done, 30, 30, 0));
    assert!((3..=4).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(service.calls().len(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_dies_stops_the_rest() {
    let service = Service::default();
    let redrive = with_letters(&service, 30).await;
    let id = desk(&redrive)
        .start(redrive_all(JobStrategy { canary: Some(3), ..JobStrategy::default() }))
        .await
        .unwrap();
    let job = over(&redrive, id).await;
    assert_eq!((job.state, job.taken, job.failed), (JobState::Stopped, 3, 3));
    assert_eq!((job.why.as_str(), service.calls().len()), ("3 of 3 failed again", 3));
    let verbs: Vec<_> = desk(&redrive).audit(None, 2).await.unwrap().into_iter().map(|it| it.verb).collect();
    assert_eq!(verbs, ["end-job", "start-job"]);
}

#[tokio::test(start_paused = true)]
async fn two_jobs_put_no_letter_back_twice() {
    let service = Service::default();
    let redrive = with_letters(&service, 20).await;
    // All die again at once, so that the slower job meets them a second time.
    let slow = JobStrategy { rate: Some(2.0), ..JobStrategy::default() };
    let (slow, fast) = (redrive_all(slow), redrive_all(JobStrategy::default()));
    let slow = desk(&redrive).start(slow).await.unwrap();
    let fast = desk(&redrive).start(fast).await.unwrap();
    let (slow, fast) = (over(&redrive, slow).await, over(&redrive, fast).await);
    assert_eq!(slow.taken + fast.taken, 20, "{slow:?} {fast:?}");
    assert_eq!(service.calls().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_paused_resumed_and_cancelled() {
    let service = Service::default();
    let redrive = with_letters(&service, 50).await;
    service.mend();
    let id = desk(&redrive)
        .start(redrive_all(JobStrategy { rate: Some(10.0), ..JobStrategy::default() }))
        .await
        .unwrap();
    tokio::time::sleep(SECOND).await;
    desk(&redrive).pause_job(id).await.unwrap();
    let before = desk(&redrive).job(id).await.unwrap().unwrap();
    assert!((5..=15).contains(&before.taken), "{before:?}");
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(desk(&redrive).job(id).await.unwrap().unwrap().taken, before.taken);
    desk(&redrive).resume_job(id).await.unwrap();
    tokio::time::sleep(SECOND).await;
    let after = desk(&redrive).job(id).await.unwrap().unwrap().taken - before.taken;
    assert!((5..=15).contains(&after), "a pause earned {after}");
    desk(&redrive).cancel_job(id).await.unwrap();
    let again = desk(&redrive).resume_job(id).await;
    assert!(matches!(again, Err(DeskError::Refused(Refusal::JobOver { .. }))), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_senseless_strategy_is_refused() {
    let redrive = started(&Service::default()).await;
    let job = redrive_all(JobStrategy { rate: Some(-1.0), ..JobStrategy::default() });
    assert!(matches!(desk(&redrive).plan(&job).await, Err(DeskError::Refused(Refusal::Senseless(_)))));
    assert!(matches!(desk(&redrive).start(job).await, Err(DeskError::Refused(Refusal::Senseless(_)))));
}

/// In real time: a file is read by threads of its own.
#[tokio::test]
async fn a_job_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("mails.db").display());
    let service = Service::default();
    let ids: Vec<String> = (0..60).map(|number| format!("m-{number:03}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    service.breaks(&ids);
    let redrive = Redrive::open(&address).await.unwrap();
    mails(&redrive, &service).await;
    redrive.start().await.unwrap();
    publish(&redrive, "mails", None, &ids).await;
    testing::drain(&redrive).await;
    service.mend();
    service.calls();
    let strategy = JobStrategy { rate: Some(100.0), ..JobStrategy::default() };
    let id = desk(&redrive).start(redrive_all(strategy)).await.unwrap();
    service.until_called(10).await;
    redrive.shutdown(SECOND).await.unwrap();

    let redrive = Redrive::open(&address).await.unwrap();
    mails(&redrive, &service).await;
    redrive.start().await.unwrap();
    let job = over(&redrive, id).await;
    assert_eq!((job.state, job.taken, job.done), (JobState::Done, 60, 60));
    assert_eq!(service.calls().len(), 60);
    redrive.shutdown(SECOND).await.unwrap();
}

#[test]
fn a_misspelt_filter_does_not_mean_everything() {
    let read = |text: &str| serde_json::from_str::<Filter>(text);
    assert_eq!(read(r#"{"queue": "mails"}"#).unwrap(), Filter::queue("mails"));
    assert!(read(r#"{"quue": "mails"}"#).is_err());
    let plan = r#"{"filter": {}, "act": {"redrive": {"out_of_oder": true}}, "strategy": {}}"#;
    assert!(serde_json::from_str::<JobPlan>(plan).is_err());
    assert!(serde_json::from_str::<JobPlan>(&plan.replace("oder", "order")).is_ok());
    assert!(serde_json::from_str::<JobStrategy>(r#"{"rat": 5.0}"#).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_plan_does_not_miss_a_handler_where_workers_fetch() {
    let redrive = testing::memory();
    redrive.queue("work").policy(patient()).pull().await.unwrap();
    redrive.start().await.unwrap();
    redrive.publish(Event::new("work", "1")).await.unwrap();
    desk(&redrive).kill(vec![EventRef::new("", "work", "1")]).await.unwrap();
    let mut job = redrive_all(JobStrategy::default());
    job.filter = Filter::queue("work");
    let plan = desk(&redrive).plan(&job).await.unwrap();
    assert_eq!((plan.matching.letters, plan.warnings), (1, Vec::<String>::new()));
    job.act = JobAct::Redrive(How { to: Some("work".to_owned()), ..How::default() });
    assert_eq!(desk(&redrive).plan(&job).await.unwrap().warnings.len(), 1, "no handler here would run it");
}
