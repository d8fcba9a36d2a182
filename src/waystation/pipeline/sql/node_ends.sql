-- How each life of a node ended, if it did, and when the node was back. Times are microseconds.
WITH lives AS (
  SELECT
    node, incarnation, ended_by, unix_micros(to_time) AS at,
    lead(unix_micros(from_time)) OVER (PARTITION BY node ORDER BY from_time, incarnation) AS back
  FROM {coverage}
)
SELECT
  lives.node, lives.incarnation, ended_by = 'stop' AS stopped, at, back,
  at - coalesce(c.ahead, 0) AS corrected,
  back - coalesce(b.ahead, 0) AS corrected_back
FROM lives
LEFT JOIN {corrections} AS c ON c.node = lives.node AND c.hour = HOUR[at]
LEFT JOIN {corrections} AS b ON b.node = lives.node AND b.hour = HOUR[back]
WHERE ended_by IS NOT NULL
