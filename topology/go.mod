module github.com/longshore-csi/longshore/topology

go 1.26.0

require (
	github.com/container-storage-interface/spec v1.13.0
	github.com/google/go-cmp v0.7.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
)
