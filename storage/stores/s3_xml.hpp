// Reads the XML in which S3 servers answer.
#pragma once

#include <functional>
#include <string>

namespace cairn {

// Calls `visit` at the end of every element, with the element's path
// ("ListBucketResult/Contents/Key") and text. Throws kUnavailable if `xml` is not well-formed;
// `what` names the document in the error.
void visit_s3_xml(const std::string& xml, const std::string& what,
                  const std::function<void(const std::string& path, const std::string& text)>& visit);

}  // namespace cairn
