// The settings of S3 stores. Needs no server.
#include <cairn/tests/support/plain.hpp>

#include <fstream>

#include <cairn/storage/store.hpp>
#include <cairn/storage/stores/s3_client.hpp>
#include <cairn/storage/stores/s3_settings.hpp>
#include <cairn/storage/stores/s3_store.hpp>
#include <cairn/tests/storage/store_tools.hpp>
#include <cairn/tests/support/environment.hpp>
#include <cairn/tests/support/temporary_directory.hpp>
#include <cairn/tests/support/thrown.hpp>

using namespace cairn;
using namespace cairn::testing;

namespace {

using Variables = std::map<std::string, std::optional<std::string>>;

// The settings with no other variables than `given`, and shared files in an empty directory.
S3Settings settings_with(const TemporaryDirectory& home, const Variables& given, const std::string& bucket = "bucket") {
  Variables all{{"HOME", home.path()}};
  for (const char* name :
       {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "CAIRN_S3_ADDRESSING",
        "AWS_CA_BUNDLE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_WEB_IDENTITY_TOKEN_FILE"})
    all[name] = std::nullopt;
  all["AWS_EC2_METADATA_DISABLED"] = "true";
  for (const auto& [name, value] : given) all[name] = value;
  const Environment environment(all);
  return s3_settings_from_environment(bucket);
}

const Variables kKeys{{"AWS_ACCESS_KEY_ID", "id"}, {"AWS_SECRET_ACCESS_KEY", "secret"}};

Variables with_keys(Variables more) {
  more.insert(kKeys.begin(), kKeys.end());
  return more;
}

}  // namespace

TEST_CASE("S3 settings: without an endpoint the bucket is at AWS, in the region that is set") {
  TemporaryDirectory home;
  const S3Settings there = settings_with(home, with_keys({{"AWS_REGION", "eu-north-1"}}));
  CHECK(there.endpoint == "https://s3.eu-north-1.amazonaws.com");
  CHECK(there.region == "eu-north-1");
  CHECK(there.virtual_hosts);
  CHECK(settings_with(home, kKeys).region == "us-east-1");
  // The certificate of AWS does not cover such a host.
  CHECK_FALSE(settings_with(home, kKeys, "a.bucket").virtual_hosts);
}

TEST_CASE("S3 settings: another endpoint is addressed by path unless told otherwise") {
  TemporaryDirectory home;
  const S3Settings there = settings_with(home, with_keys({{"AWS_ENDPOINT_URL", "http://minio:9000/"}}));
  CHECK(there.endpoint == "http://minio:9000");
  CHECK_FALSE(there.virtual_hosts);
  CHECK(settings_with(home, with_keys({{"AWS_ENDPOINT_URL", "http://minio"}, {"CAIRN_S3_ADDRESSING", "virtual"}})).virtual_hosts);
  CHECK(code_of([&] { settings_with(home, with_keys({{"CAIRN_S3_ADDRESSING", "host"}})); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([&] { settings_with(home, with_keys({{"AWS_ENDPOINT_URL", "minio:9000"}})); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("S3 settings: credentials come from the environment, or from a profile") {
  TemporaryDirectory home;
  CHECK(code_of([&] { settings_with(home, {}); }) == ErrorCode::kPermission);
  const std::string credentials = home.path() + "/credentials", config = home.path() + "/config";
  std::ofstream(credentials) << "# of two jobs\n[default]\naws_access_key_id = first\naws_secret_access_key=1=1\n"
                                "[job]\r\naws_access_key_id=second\r\naws_secret_access_key = two\r\naws_session_token = token\r\n";
  std::ofstream(config) << "[default]\nregion = here\n[profile job]\nregion = there\ns3 =\n  region = nowhere\n";
  const Variables files{{"AWS_SHARED_CREDENTIALS_FILE", credentials}, {"AWS_CONFIG_FILE", config}};

  const S3Settings first = settings_with(home, files);
  CHECK(first.credentials.access_key == "first");
  CHECK(first.credentials.secret_key == "1=1");
  CHECK(first.credentials.session_token.empty());
  CHECK(first.region == "here");
  Variables of_job = files;
  of_job["AWS_PROFILE"] = "job";
  const S3Settings second = settings_with(home, of_job);
  CHECK(second.credentials.access_key == "second");
  CHECK(second.credentials.secret_key == "two");
  CHECK(second.credentials.session_token == "token");
  CHECK(second.region == "there");
  Variables by_environment = with_keys(files);
  by_environment["AWS_SESSION_TOKEN"] = "short-lived";
  CHECK(settings_with(home, by_environment).credentials.access_key == "id");
  CHECK(settings_with(home, by_environment).credentials.session_token == "short-lived");
}

TEST_CASE("S3 settings: keys may be in the config file") {
  TemporaryDirectory home;
  const std::string config = home.path() + "/config";
  std::ofstream(config) << "[default]\naws_access_key_id = id\naws_secret_access_key = secret\n";
  CHECK(settings_with(home, {{"AWS_CONFIG_FILE", config}}).credentials.secret_key == "secret");
}

TEST_CASE("S3 settings: an endpoint with a password is refused, and the password not shown") {
  TemporaryDirectory home;
  const Thrown error = thrown_by([&] { settings_with(home, with_keys({{"AWS_ENDPOINT_URL", "http://me:word@minio"}})); });
  CHECK(error.code == ErrorCode::kInvalidArgument);
  CHECK_FALSE(error.says("word@"));
}

TEST_CASE("S3 settings: a URL without a bucket is refused, and opening one accesses nothing") {
  CHECK(code_of([] { open_store("s3:///run"); }) == ErrorCode::kInvalidArgument);
  CHECK(code_of([] { open_store("s3://bucket/a/../b"); }) == ErrorCode::kInvalidArgument);
  CHECK(open_store("s3://bucket/run/step_1/")->url() == "s3://bucket/run/step_1");
  CHECK(open_store("s3://bucket")->url() == "s3://bucket");
  CHECK(parent_url("s3://bucket/run") == "s3://bucket");
}

TEST_CASE("S3 settings: what a signature covers is percent-encoded") {
  CHECK(s3_encode("a b/c~ü+%", true) == "a%20b/c~%C3%BC%2B%25");
  CHECK(s3_encode("a/b") == "a%2Fb");
  CHECK(s3_decode("a%20b%2Fc+%zz%") == "a b/c+%zz%");
  CHECK(s3_decode("a+b%2B", true) == "a b+");
}

namespace {

// A server that gives every request the same answer.
class AnsweringClient : public S3Client {
 public:
  AnsweringClient() : S3Client("bucket", [] { return S3Settings(); }) {}
  S3Response send(const S3Request&) override {
    S3Response response;
    response.status = status;
    response.error_code = error_code;
    return response;
  }
  int status = 0;
  std::string error_code;
};

}  // namespace

TEST_CASE("S3 settings: a conditional write is refused by its condition only") {
  const auto client = std::make_shared<AnsweringClient>();
  for (const int status : {412, 404}) {
    client->status = status;
    client->error_code = status == 404 ? "NoSuchKey" : "";
    CAPTURE(status);
    CHECK_FALSE(client->put_if("key", "content", "etag"));
  }
  client->error_code = "";  // of a proxy
  CHECK(code_of([&] { client->put_if("key", "content", "etag"); }) == ErrorCode::kUnavailable);
  CHECK(code_of([&] { client->put_if("key", "content"); }) == ErrorCode::kUnavailable);
  client->status = 416;
  CHECK(code_of([&] { client->put_if("key", "content", "etag"); }) == ErrorCode::kUnavailable);
}

TEST_CASE("S3 settings: an answer that is not XML is an error, and no crash") {
  const auto reads = [](const std::string& xml) {
    std::vector<std::string> seen;
    visit_s3_xml(xml, "a test", [&](const std::string& path, const std::string& text) { seen.push_back(path + "=" + text); });
    return seen;
  };
  CHECK(reads("<?xml version=\"1.0\"?><a><b>1 &amp; 2</b><b/></a>") == std::vector<std::string>{"a/b=1 & 2", "a/b=", "a="});
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "<a>";
  for (const std::string& xml : {std::string(), std::string("<a>"), std::string("<a></b>"), std::string("502 Bad Gateway"), deep})
    CHECK(code_of([&] { reads(xml); }) == ErrorCode::kUnavailable);
}
