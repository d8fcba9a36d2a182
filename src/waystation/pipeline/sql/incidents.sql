-- Incidents by their losses, and those that are told whether they cost something or not.
WITH explained AS (
  SELECT
    *, struct(at, message_id, coalesce(origin, ''), coalesce(recipient, '')) AS place
  FROM {explained}
),
first_of_message AS (
  SELECT *, min(place) OVER (PARTITION BY incident_id, message_id) AS first_place FROM explained
),
numbered AS (
  SELECT *, dense_rank() OVER (PARTITION BY incident_id ORDER BY first_place) AS number
  FROM first_of_message
),
costly AS (
  SELECT
    incident_id, min(kind) AS kind, min_by(incident_node, place) AS node,
    min_by(incident_started, place) AS started, min_by(incident_ended, place) AS ended,
    max(at) AS last, sort_array(collect_set(recipient)) AS participants,
    count_if(NOT internal) AS lost, min_by(incident_cause, place) AS cause,
    transform(
      array_sort(
        collect_set(IF(number <= EVIDENCE, struct(number, message_id), NULL))
      ),
      one -> one.message_id
    ) AS evidence
  FROM numbered
  GROUP BY incident_id
),
links AS (
  SELECT ended.key, min_by(ended, struct(node, session, opened)) AS ended
  FROM {session_ends}
  WHERE ended.kind = 'link_lost' AND ended.lost AND peer IS NOT NULL
    AND role IN ('parent', 'leaf', 'peer')
  GROUP BY ended.key
),
unrecorded AS (
  SELECT s.peer AS node, min(unix_micros(s.opened_at) - coalesce(c.ahead, 0)) AS since
  FROM {session_history} AS s
  LEFT JOIN {corrections} AS c ON c.node = s.node AND c.hour = HOUR[unix_micros(s.opened_at)]
  LEFT ANTI JOIN {coverage} AS known ON known.node = s.peer
  WHERE s.peer IS NOT NULL AND s.role IN ('parent', 'leaf', 'peer')
  GROUP BY s.peer
),
always AS (
  SELECT
    IF(stopped, 'node_stopped', 'node_crashed') AS kind, node,
    concat_ws('|', node, incarnation) AS key, at AS started, back AS ended,
    concat(
      node, IF(stopped, ' was stopped', ' crashed'),
      IF(back IS NULL, '', concat(' and was back ', LASTED[back - at], ' later'))
    ) AS cause
  FROM {node_ends}
  WHERE back IS NOT NULL OR NOT stopped
  UNION ALL
  SELECT
    'link_lost', ended.node, ended.key, ended.at, ended.back,
    concat(
      'the link of ', ended.node, ' with ', ended.peer, ' broke',
      IF(ended.back IS NULL, '', concat(' and was back ', LASTED[ended.back - ended.at], ' later'))
    )
  FROM links
  UNION ALL
  SELECT DISTINCT 'clock', node, concat_ws('|', node, started), started, ended, cause FROM {clocks}
  UNION ALL
  SELECT
    'journal_gap', node, concat_ws('|', node, since), since, until,
    concat('the record of ', node, ' is incomplete')
  FROM {gaps}
  UNION ALL
  SELECT
    'journal_gap', node, concat_ws('|', node, since), since, NULL,
    concat('there is no record of ', node)
  FROM unrecorded
),
named AS (
  SELECT substring(sha2(concat_ws('|', kind, key), 256), 1, 16) AS incident_id, always.*
  FROM always
),
all_of_them AS (
  SELECT
    incident_id, kind, node, started,
    IF(
      kind IN ('slow_receiver', 'no_subscriber', 'loop', 'refused')
        OR (kind = 'other' AND ended IS NULL),
      last, ended
    ) AS ended,
    participants, lost, cause, evidence, 1 AS weight
  FROM costly
  UNION ALL
  SELECT
    incident_id, kind, node, started, ended,
    CAST(array() AS ARRAY<STRING>), 0, cause, CAST(array() AS ARRAY<STRING>), 0
  FROM named
),
-- An incident that cost something is told with its losses.
once AS (
  SELECT
    max_by(
      struct(incident_id, kind, node, started, ended, participants, lost, cause, evidence), weight
    ) AS told
  FROM all_of_them
  GROUP BY incident_id
)
SELECT
  told.incident_id, told.kind, told.node, timestamp_micros(told.started) AS started,
  date_from_unix_date(CAST(told.started div DAY AS INT)) AS day,
  timestamp_micros(told.ended) AS ended, told.participants, told.lost, told.cause, told.evidence
FROM once
