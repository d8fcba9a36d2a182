SELECT
  message_id, origin, recipient, timestamp_micros(at) AS event_time,
  timestamp_micros(received) AS at_visit, node, next_node, sender, multicast_id, reason, cause,
  internal, incident_id, day
FROM {explained}
