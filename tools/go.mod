module github.com/longshore-csi/longshore/tools

go 1.26.0
