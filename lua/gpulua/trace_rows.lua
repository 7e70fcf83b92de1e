-- Which rows of tables traced work counts in: in the report, and on the timeline's page.

local rows = {}

--- rows.of(label, kernel, is_shared, source, line) -> which row of a table an operation counts in: its kernel's; of
-- those that share a name, as all of gpu.map do, that of its label or, where it has none, of its line.
function rows.of(label, kernel, is_shared, source, line)
  if not is_shared then
    return kernel or label
  end
  return label ~= kernel and label or source and string.format("%s (%s:%d)", kernel, source, line) or kernel
end

--- rows.of_node(node) -> likewise of one of core.trace_nodes: that of its label, if it has one.
function rows.of_node(node)
  return node.label ~= node.kernel and node.label
    or rows.of(node.label, node.kernel, node.is_shared, node.source, node.line)
end

return rows
