module coppice.test/clients

go 1.24

require (
	github.com/redis/go-redis/v9 v9.14.0
	github.com/redis/rueidis v1.0.67
)
