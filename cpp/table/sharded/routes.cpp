#include "table/sharded/routes.hpp"

#include <utility>

#include "core/environment.hpp"

namespace gpuhash {

Routes::Routes(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> origin)
    : shards_(std::move(shards)), origin_(std::move(origin)) {
  bool first_here = true;
  for (std::size_t shard = 0; shard < shards_->tables.size(); ++shard) {
    DeviceContext& context = *shards_->contexts[shard];
    const bool here = context.device() == origin_->device();
    Route route{shards_->tables[shard].get(), &context, here, false, nullptr};
    if (!environment().peer_access) route.local = here && std::exchange(first_here, false);
    if (!route.local) {
      route.direct = environment().peer_access && context.reaches(*origin_);
      route.returning = context.make_fence();
      if (leaving_ == nullptr) leaving_ = origin_->make_fence();
    }
    routes_.push_back(std::move(route));
  }
}

void Routes::leave(Stream call) const {
  if (leaving_ == nullptr) return;
  leaving_->record(call);
  for (const Route& route : routes_)
    if (!route.local) leaving_->wait_on(route.context->device(), route.stream(call));
}

void Routes::come_back(Stream call) const {
  for (const Route& route : routes_)
    if (!route.local) route.returning->record(route.stream(call));
  follow(call);
}

void Routes::follow(Stream call) const {
  for (const Route& route : routes_)
    if (!route.local) route.returning->wait_on(origin_->device(), call);
}

}  // namespace gpuhash
