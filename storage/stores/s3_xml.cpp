#include <cairn/storage/stores/s3_xml.hpp>

#include <exception>
#include <memory>
#include <new>

#include <expat.h>

#include <cairn/base/error.hpp>

namespace cairn {
namespace {

// Expat's callbacks for visit_s3_xml.
struct XmlWalk {
  const std::function<void(const std::string&, const std::string&)>& visit;
  XML_Parser parser;
  std::string path;
  std::string text;
  std::exception_ptr error;

  static void start(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto& walk = *static_cast<XmlWalk*>(self);
    if (!walk.path.empty()) walk.path += '/';
    walk.path += name;
    walk.text.clear();
    // No answer of S3 is nested as deep.
    if (walk.path.size() > 1000) XML_StopParser(walk.parser, XML_FALSE);
  }
  static void end(void* self, const XML_Char* /*name*/) {
    auto& walk = *static_cast<XmlWalk*>(self);
    try {
      if (!walk.error) walk.visit(walk.path, walk.text);
    } catch (...) {
      walk.error = std::current_exception();
      XML_StopParser(walk.parser, XML_FALSE);
    }
    const std::size_t slash = walk.path.rfind('/');
    walk.path.resize(slash == std::string::npos ? 0 : slash);
    walk.text.clear();
  }
  static void characters(void* self, const XML_Char* text, int length) {
    static_cast<XmlWalk*>(self)->text.append(text, static_cast<std::size_t>(length));
  }
};

}  // namespace

void visit_s3_xml(const std::string& xml, const std::string& what,
                  const std::function<void(const std::string& path, const std::string& text)>& visit) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate("UTF-8"), &XML_ParserFree);
  if (!parser) throw std::bad_alloc();
  XmlWalk walk{visit, parser.get(), {}, {}, {}};
  XML_SetUserData(parser.get(), &walk);
  XML_SetElementHandler(parser.get(), XmlWalk::start, XmlWalk::end);
  XML_SetCharacterDataHandler(parser.get(), XmlWalk::characters);
  const XML_Status status = XML_Parse(parser.get(), xml.data(), static_cast<int>(xml.size()), XML_TRUE);
  if (walk.error) std::rethrow_exception(walk.error);
  if (status != XML_STATUS_OK)
    throw Error(ErrorCode::kUnavailable,
                "the server answered with " + what + " that cannot be read: " + XML_ErrorString(XML_GetErrorCode(parser.get())));
}

}  // namespace cairn
