BEGIN TRANSACTION;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "counters" VALUES('event_bytes',172);
INSERT INTO "counters" VALUES('event_count',2);
INSERT INTO "counters" VALUES('frame_bytes',7);
INSERT INTO "counters" VALUES('frame_count',1);
INSERT INTO "counters" VALUES('frame_order',1);
INSERT INTO "counters" VALUES('live_bytes',7);
INSERT INTO "counters" VALUES('live_frames',1);
INSERT INTO "counters" VALUES('stored_bytes',172);
INSERT INTO "counters" VALUES('stored_events',2);
INSERT INTO "counters" VALUES('success_count',1);
INSERT INTO "counters" VALUES('trigger_count',2);
CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        event_id TEXT,
        user TEXT NOT NULL,
        type TEXT NOT NULL,
        page TEXT NOT NULL,
        time_s REAL NOT NULL,
        fields TEXT NOT NULL,
        size INTEGER NOT NULL,
        receive_time_s REAL NOT NULL);
INSERT INTO "events" VALUES(1,'e1','ann','go','item',1.0,'{"n":1}',86,5.0);
INSERT INTO "events" VALUES(2,'e2','ann','go','item',2.0,'{"n":2}',86,5.0);
CREATE TABLE files (
        path TEXT PRIMARY KEY, inode INTEGER NOT NULL, offset INTEGER NOT NULL, line INTEGER NOT NULL
        ) WITHOUT ROWID;
CREATE TABLE frames (
        stream TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        order_id INTEGER NOT NULL,
        schema_id TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        payload BLOB NOT NULL,
        tombstone TEXT NOT NULL,
        PRIMARY KEY (stream, sequence)) WITHOUT ROWID;
INSERT INTO "frames" VALUES('t/out',1,1,'t@1/out',1.0,X'7B226E223A317D','');
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('processed_seq',2);
CREATE TABLE reports (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        report_id TEXT NOT NULL UNIQUE,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        release TEXT NOT NULL,
        stage TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        failure_reason TEXT NOT NULL DEFAULT '',
        failure_message TEXT NOT NULL DEFAULT '',
        UNIQUE (task, version, release, stage));
INSERT INTO "reports" VALUES(1,'staged','t','1','r','STAGED',1.0,'','');
INSERT INTO "reports" VALUES(2,'active','t','1','r','ACTIVATED',2.0,'','');
INSERT INTO "reports" VALUES(3,'confirmed','t','1','r','CONFIRMED',7.0,'','');
CREATE TABLE results (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        user TEXT NOT NULL,
        result TEXT NOT NULL,
        failure_reason TEXT NOT NULL,
        failure_message TEXT NOT NULL,
        event_time_s REAL NOT NULL,
        latency_ms REAL NOT NULL);
INSERT INTO "results" VALUES(1,'t','1','ann','{"n":1}','','',1.0,1000.0);
CREATE TABLE runs (
        run_id INTEGER PRIMARY KEY AUTOINCREMENT,
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        last_seq INTEGER NOT NULL,
        event_time_s REAL NOT NULL,
        trigger_time_s REAL NOT NULL,
        events TEXT NOT NULL);
INSERT INTO "runs" VALUES(2,'t','1',2,2.0,6.0,'[{"event_id":"e2","fields":{"n":2},"page":"item","time_s":2.0,"type":"go","user":"ann"}]');
CREATE TABLE streams (
        stream TEXT PRIMARY KEY, epoch BLOB NOT NULL, next_sequence INTEGER NOT NULL, acked INTEGER NOT NULL
        ) WITHOUT ROWID;
INSERT INTO "streams" VALUES('t/out',X'61616161616161616161616161616161',2,0);
CREATE TABLE versions (
        task TEXT NOT NULL,
        version TEXT NOT NULL,
        state TEXT NOT NULL,
        release TEXT NOT NULL,
        manifest_digest TEXT NOT NULL,
        manifest BLOB NOT NULL,
        activated_seq INTEGER NOT NULL DEFAULT 0,
        idle_s REAL NOT NULL DEFAULT 0,
        success_count INTEGER NOT NULL DEFAULT 0,
        failure_count INTEGER NOT NULL DEFAULT 0,
        failures_in_a_row INTEGER NOT NULL DEFAULT 0,
        successes_since INTEGER NOT NULL DEFAULT 0,
        failure_reason TEXT NOT NULL DEFAULT '',
        failure_message TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (task, version)) WITHOUT ROWID;
INSERT INTO "versions" VALUES('t','1','CONFIRMED','r','digest-1',X'6D616E6966657374',0,0.0,1,0,0,1,'','');
CREATE UNIQUE INDEX events_id ON events (event_id) WHERE event_id IS NOT NULL;
CREATE INDEX events_user ON events (user, time_s);
CREATE INDEX events_time ON events (time_s);
CREATE UNIQUE INDEX one_running ON versions (task) WHERE state IN ('ACTIVE', 'CONFIRMED');
CREATE UNIQUE INDEX one_previous ON versions (task) WHERE state = 'PREVIOUS';
CREATE INDEX runs_task ON runs (task, version, run_id);
CREATE INDEX results_task ON results (task, seq);
CREATE INDEX frames_live ON frames (order_id) WHERE tombstone = '';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('reports',3);
INSERT INTO "sqlite_sequence" VALUES('events',2);
INSERT INTO "sqlite_sequence" VALUES('runs',2);
INSERT INTO "sqlite_sequence" VALUES('results',1);
COMMIT;
PRAGMA user_version=1;
