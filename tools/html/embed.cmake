# Puts the page of `cairn trace export --to html` together, as one text in a source file.
#   cmake -DSOURCE=<this folder> -DOUTPUT=<file.cpp> -P embed.cmake
file(READ ${SOURCE}/page.html page)
file(READ ${SOURCE}/page.css style)
set(scripts "")
foreach(name model lanes arrows draw panel input page)
  file(READ ${SOURCE}/${name}.js script)
  string(APPEND scripts "<script>\n${script}</script>\n")
endforeach()
string(REPLACE "<!--style-->" "<style>\n${style}</style>" page "${page}")
string(REPLACE "<!--scripts-->" "${scripts}" page "${page}")
file(WRITE ${OUTPUT} "// Made by html/embed.cmake.
#include <cairn/tools/trace.hpp>

const std::string_view cairn::tools::kTracePageTemplate = R\"cairn_page(${page})cairn_page\";
")
